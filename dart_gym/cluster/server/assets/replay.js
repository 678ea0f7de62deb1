// One episode: its steps, the screen with the action drawn on it, what was written, and where the time went.
const FULL_HEAT = 4;   // nats of surprise at full colour: a probability of 2 %
const STEP_PHASES = ["generate", "perform", "settle", "capture", "evaluate", "queue"];
const ENDINGS = { done: "good", fail: "warn", step_limit: "warn", time_limit: "warn" };

function part(title, ...content) {
  const element = make("section", "part");
  element.append(make("h3", "", title), ...content);
  return element;
}

function tokenBlock(step) {
  const block = make("div", "mono");
  step.response_ids.forEach((id, index) => {
    const text = index < step.tokens.length ? step.tokens[index] : `#${id} `, logprob = step.logprobs[index];
    const token = make("span", "token", text.replace(/\n/g, "⏎\n") || "·");
    const known = typeof logprob === "number";
    if (known) token.style.backgroundColor = `rgba(var(--heat),${(0.75 * Math.min(1, -logprob / FULL_HEAT)).toFixed(3)})`;
    token.title = `token ${id}` + (known ? `: probability ${(100 * Math.exp(logprob)).toPrecision(3)} %, log-probability ${logprob.toFixed(4)}` : "");
    block.append(token);
  });
  return block;
}

function tokenSection(step) {
  const parts = [tokenBlock(step)], known = step.logprobs.filter(value => typeof value === "number");
  if (known.length) {
    const legend = make("div", "legend");
    legend.append("certain", make("i", ""), `surprising (probability under ${(100 * Math.exp(-FULL_HEAT)).toFixed(0)} %)`);
    const mean = -known.reduce((sum, value) => sum + value, 0) / known.length;
    parts.push(legend, make("div", "facts", `${step.response_ids.length} tokens, mean surprise ${mean.toFixed(3)} nats` +
      ` · prompt: ${step.prompt_tokens} tokens, ${step.prompt_images} image${step.prompt_images === 1 ? "" : "s"}`));
  }
  return part("Tokens", ...parts);
}

function timingSection(timings) {
  const parts = STEP_PHASES.map((name, index) => [name, timings[name] || 0, index]).filter(part => part[1] > 0);
  const server = ["perform", "settle", "capture", "evaluate", "queue"].reduce((sum, name) => sum + (timings[name] || 0), 0);
  const rest = (timings.total || 0) - server;
  if (rest > 0.0005) parts.push(["other", rest, 6]);
  const whole = parts.reduce((sum, part) => sum + part[1], 0);
  if (!(whole > 0)) return null;
  const bar = make("div", "bar"), table = make("div", "times");
  for (const [name, value, color] of parts) {
    const piece = make("i", "c" + color);
    piece.style.width = 100 * value / whole + "%";
    bar.append(piece);
    table.append(make("i", "c" + color), make("span", "", name), make("span", "t", precise(value)));
    if (name === "generate" && timings.engine) table.append(make("span", ""),
      make("span", "t", "  of it in the engine"), make("span", "t", precise(timings.engine)));
  }
  return part(`Time: ${precise(whole)}`, bar, table);
}

function outcomeOf(episode) {
  const score = episode.score === null ? "without a score" : `with a score of ${episode.score}`;
  return `Ended as ${spaced(episode.terminal)} after ${counted(episode.num_actions, "action")}, ${score}.`;
}

function sideOf(episode, frame) {
  if (frame.end) return [part("The end", make("p", "", outcomeOf(episode))),
    ...(episode.detail ? [part("What the evaluation says", make("p", "", episode.detail))] : []),
    ...(episode.error ? [part("Problem", make("p", "problem", episode.error))] : [])];
  const parts = frame.thought ? [part("Thought", make("p", "", frame.thought))] : [], actions = make("div", "actions");
  actions.append(...frame.actions.map((action, index) => make("div", "action", (frame.actions.length > 1 ? `${index + 1}. ` : "") + describe(action))));
  if (!frame.actions.length) actions.append(make("p", "facts", frame.terminal ? `none: ended as ${frame.terminal}` : "none"));
  parts.push(part(frame.actor === "policy" ? "Action" : `Action (by ${frame.actor === "human" ? "a person" : "the " + frame.actor})`, actions));
  for (const [title, text] of [["Could not be understood", frame.error], ["Could not be carried out", frame.action_error]])
    if (text) parts.push(part(title, make("p", "problem", text)));
  if (frame.text) parts.push(part("What the model wrote", make("div", "mono", frame.text)));
  if (frame.response_ids.length) parts.push(tokenSection(frame));
  const times = timingSection(frame.timings);
  if (times) parts.push(times);
  if (frame.engine) parts.push(part("Engine", make("p", "facts", `${frame.engine}, weights ${[...new Set(frame.version)].join(" to ")}` +
    (frame.finish_reason ? `, finished by ${frame.finish_reason}` : ""))));
  return parts;
}

// Makes `root` show episodes. `moved(step)` is called with each step that is shown, `left()` by the button that leads back,
// and `other(id, step)` by the episodes of the same tree.
function makeReplay(root, moved, left = null, other = null) {
  root.classList.add("replay");
  root.replaceChildren($("replay-parts").content.cloneNode(true));
  const at = name => root.querySelector("." + name), svg = root.querySelector("svg");
  const pictures = new Map();  // address of an image -> URL, or a promise of one
  let episode = null, frames = [], shown = -1, markStep = () => {};

  function picture(image, use) {  // calls `use` with a URL, at once where it is there
    if (!image || image.startsWith("data:")) { if (image) use(image); return; }
    if (!pictures.has(image)) pictures.set(image, ask(image, { cache: "default" }).then(answer => answer.blob()).then(blob => {
      const url = URL.createObjectURL(blob);
      pictures.set(image, url);
      return url;
    }).catch(() => ""));
    const found = pictures.get(image);
    if (typeof found === "string") use(found);
    else found.then(url => { if (url) use(url); });
  }

  const inRail = new IntersectionObserver(entries => {
    for (const entry of entries) if (entry.isIntersecting) {
      inRail.unobserve(entry.target);
      picture(entry.target.dataset.image, url => { entry.target.src = url; });
    }
  }, { root: at("rail"), rootMargin: "300px" });

  function drawScreen(frame, href, [width, height]) {
    svg.replaceChildren();
    if (!width || !height) return;
    svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
    if (href) draw(svg, "image", { href, width, height, preserveAspectRatio: "none" });
    const unit = Math.min(width, height) / 100, actions = frame.actions || [];
    const spoken = actions.filter((action, index) => !markers(draw(svg, "g", {}), action, unit, actions.length > 1 ? index + 1 : 0));
    spoken.slice(0, 4).forEach((action, index) => {  // what has no place on the screen stands at its foot
      const size = 3.4 * unit, words = describe(action).replace(/\s+/g, " "), text = words.length > 70 ? words.slice(0, 69) + "…" : words;
      const group = draw(svg, "g", { class: "caption" }), y = height - (spoken.length - index) * 2 * size - unit;
      const box = draw(group, "rect", { x: 0, y, height: 1.8 * size, rx: size / 2, width: 10 });
      const label = draw(group, "text", { x: width / 2, y: y + 0.9 * size, "font-size": size, "text-anchor": "middle" }, text);
      const wide = label.getBBox().width + 2 * size;
      box.setAttribute("width", wide);
      box.setAttribute("x", (width - wide) / 2);
    });
  }

  function showScreen(frame) {
    at("none").hidden = Boolean(frame.image);
    drawScreen(frame, "", frame.screen);
    picture(frame.image, url => {
      if (frames[shown] !== frame) return;
      if (frame.screen[0]) { drawScreen(frame, url, frame.screen); return; }
      const image = new Image();  // a screen whose size was not recorded is as large as its picture
      image.onload = () => { if (frames[shown] === frame) drawScreen(frame, url, [image.naturalWidth, image.naturalHeight]); };
      image.src = url;
    });
  }

  function show(index) {
    shown = Math.max(0, Math.min(frames.length - 1, index));
    const frame = frames[shown];
    if (!frame) {
      showScreen({ screen: [1, 1], image: "" });
      at("side").replaceChildren(part("No steps", make("p", "", outcomeOf(episode))), ...sideOf(episode, { end: true }).slice(1));
      return;
    }
    showScreen(frame);
    at("side").replaceChildren(...sideOf(episode, frame));
    at("side").scrollTop = 0;
    at("slider").value = shown;
    at("previous").disabled = shown === 0;
    at("next").disabled = shown === frames.length - 1;
    at("position").textContent = frame.end ? "the end" : `step ${shown + 1} of ${episode.steps}` + (episode.forked_from ? " after the fork" : "");
    markStep(shown);
    root.querySelectorAll(".rail button").forEach((button, index) => button.setAttribute("aria-current", index === shown));
    root.querySelectorAll(".rail button")[shown].scrollIntoView({ block: "nearest", inline: "nearest" });
    if (shown + 1 < frames.length) picture(frames[shown + 1].image, () => {});
    moved(shown);
  }

  function railItem(frame, index) {
    const item = make("li"), button = make("button"), image = make("img"), label = make("div", "label");
    image.alt = "";
    if (frame.image.startsWith("data:")) image.src = frame.image;
    else if (frame.image) { image.dataset.image = frame.image; inRail.observe(image); }
    const what = frame.end ? "the end" : frame.error ? "✗ " + spaced(frame.terminal || "error") : frame.actions.map(describe).join(", ") || frame.terminal;
    label.append(make("span", "n", frame.end ? "■" : String(index + 1)), make("span", "what-done" + (troubled(frame) ? " bad" : ""), what));
    button.append(image, label);
    button.title = what;
    button.addEventListener("click", () => show(index));
    item.append(button);
    return item;
  }

  const troubled = frame => Boolean(frame.error || frame.action_error);

  function showFacts() {
    at("task").textContent = episode.task_id;
    at("instruction").textContent = episode.instruction;
    at("terminal").textContent = spaced(episode.terminal);
    at("terminal").className = "chip terminal " + (ENDINGS[episode.terminal] || "bad");
    at("score").textContent = episode.score === null ? "no score" : `score ${+episode.score.toFixed(3)}`;
    at("score").className = "chip score " + (episode.score === null ? "warn" : episode.score >= 1 ? "good" : "bad");
    at("lost").hidden = !episode.lost_by;
    at("lost").textContent = episode.lost_by === "fork" ? "given up" : `lost by the ${episode.lost_by}`;
    const times = episode.timings, whole = ["reset", "generate", "step", "evaluate", "wire", "queue"].reduce((sum, name) => sum + (times[name] || 0), 0);
    const facts = [["continues", episode.forked_from ? `${episode.forked_from} from step ${episode.fork_step + 1}` : ""], ["policy", episode.policy], ["seed", episode.seed], ["app", episode.app], ["actions", episode.num_actions],
      ["evaluator", episode.evaluator], ["time", whole ? precise(whole) : ""], ["of it the policy's", times.generate ? precise(times.generate) : ""],
      ["ended", episode.ended_at ? new Date(1000 * episode.ended_at).toLocaleString() : ""]];
    at("facts").replaceChildren(...facts.filter(([, value]) => value !== "" && value !== null).map(([name, value]) => {
      const element = make("span", "", name + " ");
      element.append(make("b", "", String(value)));
      return element;
    }));
  }

  function load(data, step = 0) {
    close();
    episode = { ...data.episode, steps: data.steps.length };
    frames = [...data.steps, ...(data.final ? [{ ...data.final, end: true }] : [])];
    showFacts();
    markStep = showTree(at("tree"), other ? data : {}, other);
    at("slider").max = Math.max(0, frames.length - 1);
    at("rail").replaceChildren(...frames.map(railItem));
    show(step);
  }

  function close() {
    inRail.disconnect();
    for (const url of pictures.values()) if (typeof url === "string" && url) URL.revokeObjectURL(url);
    pictures.clear();
  }

  function key(event) {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (event.key === "e") {
      const next = frames.findIndex((frame, index) => index > shown && troubled(frame));
      if (next >= 0) show(next);
    } else if (by === undefined || event.target === at("slider")) return false;
    else show(shown + by);
    return true;
  }

  at("slider").addEventListener("input", () => show(+at("slider").value));
  at("previous").addEventListener("click", () => show(shown - 1));
  at("next").addEventListener("click", () => show(shown + 1));
  at("back").hidden = !left;
  at("back").addEventListener("click", () => left());
  return { load, close, show, key, get shown() { return shown; }, get last() { return frames.length - 1; },
    get trouble() { return frames.findIndex(troubled); } };
}
