// A person plays, or takes over from a policy: what hands do on the screen becomes typed actions.
const playView = (() => {
const image = $("image"), screen_ = $("screen");
const NAMES = { Enter: "enter", Escape: "esc", Backspace: "backspace", Delete: "delete", Tab: "tab", Home: "home", End: "end",
  PageUp: "pageup", PageDown: "pagedown", Insert: "insert", ArrowUp: "up", ArrowDown: "down", ArrowLeft: "left", ArrowRight: "right", " ": "space" };
const BUTTONS = ["left", "middle", "right"], DOUBLE_MS = 260, DRAG_PIXELS = 5;
let turn = 0, size = [1, 1], mine = false, drives = "person", shared = false, pending = "", pressed = null, clicks = null;

const here = path => location.pathname + path;

function setMine(value) {
  mine = value;
  screen_.classList.toggle("busy", !value);
  $("turn").textContent = value ? "your turn" : drives === "policy" ? "the policy plays" : "the desktop's turn";
  $("turn").classList.toggle("mine", value);
  for (const id of ["wait", "send", "done", "fail"]) $(id).disabled = !value;
  $("drive").hidden = !shared;
  $("drive").textContent = drives === "policy" ? "Take over" : "Give back to the policy";
}

function setPending(text) {
  pending = text;
  $("pending").textContent = text;
  $("typing").hidden = !text;
}

async function send(...actions) {
  if (!mine) return;
  if (pending) actions.unshift({ kind: "type", text: pending });
  if (!actions.length) return;
  setMine(false);
  setPending("");
  try {
    await ask(here("/act"), { method: "POST", body: JSON.stringify({ turn, actions }) });
  } catch (error) {
    $("problem").textContent = error.message;
    setMine(true);
  }
}

function place(event) {  // screen pixels of an event on the image
  const box = image.getBoundingClientRect();
  const clamp = (value, high) => Math.max(0, Math.min(high - 1, Math.floor(value)));
  return [clamp((event.clientX - box.left) / box.width * size[0], size[0]), clamp((event.clientY - box.top) / box.height * size[1], size[1])];
}

const held = event => [["ctrl", event.ctrlKey], ["alt", event.altKey], ["shift", event.shiftKey], ["super", event.metaKey]]
  .filter(([, down]) => down).map(([name]) => name);

function click(press, modifiers) {  // waits a moment for the second click of a double click
  if (!clicks) clicks = { ...press, modifiers, count: 1 };
  else if (clicks.button === press.button && clicks.count < 3 && Math.hypot(press.x - clicks.x, press.y - clicks.y) <= DRAG_PIXELS) clicks.count++;
  else return;  // the first one is on its way, and what it does to the screen has not been seen
  clearTimeout(clicks.timer);
  clicks.timer = setTimeout(() => {
    const { at: [x, y], button, modifiers, count } = clicks;
    clicks = null;
    send({ kind: "click", x, y, button, count, modifiers });
  }, DOUBLE_MS);
}

image.addEventListener("pointerdown", event => {
  if (!mine) return;
  event.preventDefault();
  screen_.focus();
  image.setPointerCapture(event.pointerId);
  pressed = { at: place(event), button: BUTTONS[event.button], x: event.clientX, y: event.clientY };
});
image.addEventListener("pointerup", event => {
  if (!pressed) return;
  const from = pressed, to = place(event);
  pressed = null;
  if (Math.hypot(event.clientX - from.x, event.clientY - from.y) > DRAG_PIXELS) send({ kind: "drag", path: [from.at, to], button: from.button });
  else click(from, held(event));
});
image.addEventListener("contextmenu", event => event.preventDefault());
image.addEventListener("wheel", event => {
  event.preventDefault();
  const [x, y] = place(event), notches = value => Math.sign(value) * Math.max(Math.abs(value) > 0 ? 1 : 0, Math.min(10, Math.round(Math.abs(value) / 40)));
  send({ kind: "scroll", x, y, dx: notches(event.deltaX), dy: notches(event.deltaY) });
}, { passive: false });
screen_.addEventListener("keydown", event => {
  if (!mine || event.isComposing || ["Control", "Shift", "Alt", "Meta", "AltGraph", "CapsLock", "Dead"].includes(event.key)) return;
  event.preventDefault();
  const modifiers = held(event).filter(name => name !== "shift" || event.key.length > 1 || event.ctrlKey || event.altKey);
  const single = [...event.key].length === 1, altGraph = event.getModifierState("AltGraph");
  if (single && (altGraph || !event.ctrlKey && !event.altKey && !event.metaKey)) return setPending(pending + event.key);
  if (event.key === "Backspace" && pending && !modifiers.length) return setPending([...pending].slice(0, -1).join(""));
  const key = NAMES[event.key] || (/^F\d+$/.test(event.key) || single ? event.key.toLowerCase() : "");
  if (key) send({ kind: "press", keys: [...modifiers, key] });
  else $("problem").textContent = `the key ${event.key} is not known here`;
});
$("wait").addEventListener("click", () => send({ kind: "wait", seconds: 1 }));
$("send").addEventListener("click", () => send());
$("done").addEventListener("click", () => send({ kind: "done", answer: $("answer").value }));
$("fail").addEventListener("click", () => send({ kind: "fail", reason: $("answer").value }));

async function drive() {  // from the next decision on somebody else decides
  const person = drives === "policy";
  try { await ask(here("/act"), { method: "POST", body: JSON.stringify({ drives: person ? "person" : "policy" }) }); }
  catch (error) { $("problem").textContent = error.message; }
}
$("drive").addEventListener("click", drive);

async function showFrame(number) {
  const answer = await ask(here("/frame/" + number)), blob = await answer.blob(), old = image.src;
  image.src = URL.createObjectURL(blob);
  await image.decode();
  if (old) URL.revokeObjectURL(old);
  image.hidden = false;
}

async function follow() {
  for (;;) {
    try {
      const state = await (await ask(here(`/state?turn=${turn}&waiting=${+mine}&drives=${drives}`))).json();
      [drives, shared] = [state.drives, state.shared];
      if (state.turn !== turn && (state.waiting || shared)) {
        await showFrame(state.turn);
        [turn, size] = [state.turn, [state.width, state.height]];
        $("play-instruction").textContent = state.instruction;
        $("problem").textContent = state.action_error;
      }
      setMine(state.waiting && state.turn === turn);
      if (mine) screen_.focus();
    } catch (error) {
      if (error instanceof Unauthorized) return;
      $("problem").textContent = `no answer (${error.message}): it may be over`;
      setMine(false);
      await new Promise(done => setTimeout(done, 1000));
    }
  }
}
return { title: "Your turn", show() {}, start() { setMine(false); follow(); }, get mine() { return mine; }, get turn() { return turn; }, get size() { return size; } };
})();
