"use strict";
// Everything that is shown was written by a model, a desktop or a task: it is text (textContent) or a number, and nothing
// of it becomes markup, style or an address.
const $ = id => document.getElementById(id);
const config = JSON.parse($("data").textContent);  // which views there are; an episode, where the page is a file
const SVG = "http://www.w3.org/2000/svg";

class Unauthorized extends Error {}

function takeToken() {  // from the URL's fragment, which never leaves the browser; out of sight at once
  const given = new URLSearchParams(location.hash.slice(1)).get("token");
  if (given) {
    try { sessionStorage.setItem("token", given); } catch { /* storage is forbidden: the token lives as long as the page */ }
    history.replaceState(null, "", location.pathname);
  }
  return given || (config.episode ? "" : sessionStorage.getItem("token") || "");
}
let token = takeToken();

async function ask(path, options = {}) {
  const headers = token ? { Authorization: "Bearer " + token } : {};
  const answer = await fetch(path, { cache: "no-store", ...options, headers });
  if (answer.status === 401) { $("login").hidden = false; throw new Unauthorized(); }
  if (!answer.ok) throw new Error((await answer.text()).trim() || "HTTP " + answer.status);
  return answer;
}

function make(tag, name, text = "") {
  const element = document.createElement(tag);
  if (name) element.className = name;
  element.textContent = text;
  return element;
}

function draw(parent, tag, attributes, text = "") {
  const element = document.createElementNS(SVG, tag);
  for (const [key, value] of Object.entries(attributes)) element.setAttribute(key, value);
  element.textContent = text;
  parent.append(element);
  return element;
}

function setImage(image, blob) {
  if (image.src) URL.revokeObjectURL(image.src);
  if (blob) image.src = URL.createObjectURL(blob);
  else image.removeAttribute("src");
  image.hidden = !blob;
}

function duration(seconds) {
  if (seconds < 10) return seconds.toFixed(1) + " s";
  if (seconds < 120) return Math.round(seconds) + " s";
  if (seconds < 7200) return Math.round(seconds / 60) + " min";
  return (seconds / 3600).toFixed(1) + " h";
}

function precise(value) {
  return value >= 100 ? value.toFixed(0) + " s" : value >= 1 ? value.toFixed(1) + " s" : (1000 * value).toFixed(value < 0.01 ? 1 : 0) + " ms";
}

const short = value => String(+value.toPrecision(3));
const spaced = name => String(name).replaceAll("_", " ");
const counted = (count, noun) => `${count} ${noun}${count === 1 ? "" : "s"}`;

function describe(action) {
  const point = action.x === undefined || action.x === null ? "" : ` (${action.x}, ${action.y})`;
  const held = (action.modifiers || []).map(key => key + "+").join("");
  switch (action.kind) {
    case "click": return held + ({ 2: "double ", 3: "triple " }[action.count] || "") +
      ((action.button || "left") === "left" ? "" : action.button + " ") + "click" + point;
    case "drag": return "drag " + action.path.map(p => `(${p[0]}, ${p[1]})`).join(" → ");
    case "scroll": return "scroll " + [action.dy ? (action.dy > 0 ? "down " : "up ") + Math.abs(action.dy) : "",
      action.dx ? (action.dx > 0 ? "right " : "left ") + Math.abs(action.dx) : ""].filter(Boolean).join(", ") + point;
    case "type": return "type “" + action.text.replace(/\n/g, "⏎").replace(/\t/g, "⇥") + "”";
    case "press": return "press " + action.keys.join("+");
    case "wait": return `wait ${action.seconds} s`;
    case "done": return "done" + (action.answer ? ": " + action.answer : "");
    case "fail": return "fail" + (action.reason ? ": " + action.reason : "");
    case "ask_user": return "ask the user: " + action.question;
    default: return spaced(action.kind) + (action.key ? " " + action.key : action.button ? " " + action.button : "") + point;
  }
}

// Draws where an action went; false for one that has no place. `unit`: one hundredth of the shorter side of the screen.
function markers(group, action, unit, number) {
  const point = action.x !== undefined && action.x !== null ? [action.x, action.y] : null;
  const ring = (x, y, r) => { for (const name of ["mark halo", "mark"]) draw(group, "circle", { cx: x, cy: y, r, class: name }); };
  const line = points => { for (const name of ["mark halo", "mark"])
    draw(group, "polyline", { points: points.map(p => p.join()).join(" "), class: name, "stroke-linejoin": "round", "stroke-linecap": "round" }); };
  const arrow = (from, to) => {
    const angle = Math.atan2(to[1] - from[1], to[0] - from[0]), size = 3 * unit;
    const wing = turn => [to[0] - size * Math.cos(angle + turn), to[1] - size * Math.sin(angle + turn)];
    line([from, to]);
    line([wing(0.5), to, wing(-0.5)]);
  };
  let at = point;
  if (action.kind === "drag") {
    line(action.path);
    arrow(action.path[action.path.length - 2], action.path[action.path.length - 1]);
    ring(...action.path[0], 1.6 * unit);
    at = action.path[0];
  } else if (action.kind === "scroll" && point) {
    ring(...point, 1.6 * unit);
    const reach = 9 * unit;
    arrow(point, [point[0] + Math.sign(action.dx) * reach, point[1] + Math.sign(action.dy) * reach]);
  } else if (point) {
    for (let turn = 0; turn < (action.count || 1); turn++) ring(...point, (2.4 + 1.3 * turn) * unit);
    draw(group, "circle", { cx: point[0], cy: point[1], r: 0.6 * unit, class: "dot" });
  }
  if (at && number) {
    const x = at[0] + 4.2 * unit, y = at[1] - 4.2 * unit;
    draw(group, "circle", { cx: x, cy: y, r: 2 * unit, class: "dot" });
    draw(group, "text", { x, y, class: "number", "font-size": 2.6 * unit }, number);
  }
  return Boolean(at);
}
