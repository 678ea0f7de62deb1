// The view of desktops: what each of a cluster shows and does, once a second.
const liveView = (() => {
const PERIOD_MS = 1000, WINDOW_S = 30, MARKS = 5, PARALLEL = 4;
const PHASES = { held: "policy", idle: "idle" };  // the others are shown as they are called
const MEANING = { held: "lent, the policy decides", idle: "nobody uses it", boot: "a new desktop starts",
  wait: "the machine has no room for another desktop yet",
  reset: "the next episode begins", step: "an action is carried out", evaluate: "the outcome is looked at",
  oracle: "the perfect user is asked" };
const cards = new Map();      // slot -> its card
const samples = [];           // states of the last WINDOW_S seconds
let openSlot = null;

const sum = values => Object.values(values).reduce((total, value) => total + value, 0);
const busy = desktop => sum(desktop.busy_s);
const live = desktop => desktop.alive || desktop.phase !== "idle";

// --- totals

function showStats(state) {
  const first = samples[0], passed = state.uptime_s - first.uptime_s;
  const rate = name => passed > 0.5 ? ((state.counters[name] || 0) - (first.counters[name] || 0)) / passed : NaN;
  const steps = rate("step"), episodes = 60 * rate("episodes_ended");
  const lent = state.desktops.filter(desktop => desktop.phase !== "idle").length;
  const stats = [[`${lent} of ${state.desktops.length}`, "desktops lent"], [state.sessions, "sessions"],
    [state.waiting, "waiting"], [isNaN(steps) ? "–" : steps.toFixed(steps < 10 ? 1 : 0), "steps/s"],
    [isNaN(episodes) ? "–" : episodes.toFixed(0), "episodes/min"], [duration(state.uptime_s), "up"]];
  $("stats").replaceChildren(...stats.map(([value, name]) => {
    const stat = make("span", "stat");
    stat.append(make("b", "", String(value)), name + "\u2003");
    return stat;
  }));
  $("note").textContent = state.draining ? "draining: takes no new sessions" : state.waiting_because || "";
}

function utilisation(desktop) {  // share of the last WINDOW_S seconds; of its whole life while there is only one sample
  const last = samples[samples.length - 1], first = samples[0];
  const then = first.desktops.find(other => other.slot === desktop.slot);
  const passed = last.uptime_s - first.uptime_s;
  const share = passed > 0.5 && then ? (busy(desktop) - busy(then)) / passed : busy(desktop) / last.uptime_s;
  return Math.max(0, Math.min(1, share));
}

// --- the grid

function makeCard(slot) {
  const card = make("button", "card"), screen = make("div", "picture"), image = document.createElement("img");
  const parts = { card, screen, image, slot, frame: 0, visible: true };
  image.alt = "";
  image.hidden = true;
  parts.word = make("span", "");
  screen.append(image, parts.word);
  for (const name of ["who", "chip", "seconds", "step", "task", "instruction", "use"]) parts[name] = make("span", name);
  parts.fill = document.createElement("i");
  const top = make("div", "row"), bottom = make("div", "row"), bar = make("div", "bar"), body = make("div", "body");
  bar.append(parts.fill);
  top.append(parts.who, parts.chip, parts.seconds, parts.step);
  bottom.append(bar, parts.use);
  bottom.title = `Share of the last ${WINDOW_S} s in which the desktop worked`;
  body.append(top, parts.task, parts.instruction, bottom);
  card.append(screen, body);
  card.addEventListener("click", () => showDesktop(slot));
  inSight.observe(card);
  cards.set(slot, parts);
  return parts;
}

const inSight = new IntersectionObserver(entries => {
  for (const entry of entries)
    for (const parts of cards.values()) if (parts.card === entry.target) parts.visible = entry.isIntersecting;
}, { rootMargin: "200px" });

function showPhase(chip, seconds, desktop) {
  const dead = !desktop.alive && (desktop.phase === "held" || desktop.phase === "step") && desktop.frame > 0;
  chip.textContent = dead ? "broken" : PHASES[desktop.phase] || desktop.phase;
  chip.title = dead ? "the desktop died; the next reset starts another" : MEANING[desktop.phase] || "";
  chip.className = "chip " + (dead ? "dead" : desktop.phase === "step" ? "step-phase" : desktop.phase);
  seconds.textContent = duration(desktop.phase_s);
}

const starting = desktop => ["wait", "boot", "reset"].includes(desktop.phase);

function word(desktop) {
  if (desktop.phase === "boot") return "starting…";
  if (desktop.private && desktop.phase !== "idle") return "another token's";
  return desktop.frame ? "" : desktop.phase === "idle" ? "free" : "no frame yet";
}

function outcome(desktop) {
  if (!desktop.terminal || starting(desktop)) return "";
  return desktop.terminal.replace("_", " ") + (desktop.score === null ? "" : `, score ${+desktop.score.toFixed(3)}`);
}

const who = desktop => "#" + desktop.slot + (desktop.client && !desktop.private ? " " + desktop.client : "");

function showCard(desktop) {
  const parts = cards.get(desktop.slot) || makeCard(desktop.slot);
  showPhase(parts.chip, parts.seconds, desktop);
  parts.who.textContent = parts.who.title = who(desktop);
  parts.step.textContent = desktop.frame && !starting(desktop) ? outcome(desktop) || "step " + desktop.step : "";
  parts.task.textContent = desktop.task || desktop.spec;
  parts.task.title = desktop.task;
  parts.instruction.textContent = starting(desktop) ? "" : desktop.instruction;
  parts.word.textContent = word(desktop);
  parts.screen.classList.toggle("stale", starting(desktop));
  const share = utilisation(desktop);
  parts.fill.style.width = 100 * share + "%";
  parts.use.textContent = Math.round(100 * share) + " % busy";
  if (!desktop.frame) setImage(parts.image, null);
  return parts.card;
}

async function fetchFrames(state) {  // only those that changed and are in sight
  const wanted = state.desktops.filter(desktop => {
    const parts = cards.get(desktop.slot);
    return parts && parts.visible && desktop.frame && parts.frame !== desktop.frame;
  });
  const worker = async () => {
    for (let desktop = wanted.shift(); desktop; desktop = wanted.shift()) {
      const parts = cards.get(desktop.slot);
      const blob = await frame(desktop, "small");
      if (blob) { setImage(parts.image, blob); parts.frame = desktop.frame; }
    }
  };
  await Promise.all(Array.from({ length: PARALLEL }, worker));
}

async function frame(desktop, size) {  // null when the desktop was given back in between
  const headers = token ? { Authorization: "Bearer " + token } : {};
  const answer = await fetch(`watch/frame/${encodeURIComponent(desktop.slot)}?size=${size}`, { headers, cache: "no-cache" });
  return answer.ok ? answer.blob() : null;
}

// --- one desktop, big

const big = { screen: $("big-screen"), image: $("big-screen").querySelector("img"), svg: $("big-screen").querySelector("svg"),
  word: $("big-screen").querySelector("span"), frame: 0 };
for (const name of ["slot", "chip", "seconds", "task", "instruction-full", "outcome", "spec"])
  big[name] = $("dialog").querySelector("." + name);

function showDesktop(slot) {
  openSlot = slot;
  big.frame = 0;
  setImage(big.image, null);
  if (!$("dialog").open) $("dialog").showModal();
  showBig(samples[samples.length - 1]);
}

function neighbour(by) {
  const slots = [...cards.keys()];
  if (slots.length) showDesktop(slots[(slots.indexOf(openSlot) + by + slots.length) % slots.length]);
}

async function showBig(state) {
  const desktop = openSlot !== null && state && state.desktops.find(one => one.slot === openSlot);
  if (!desktop) return;
  showPhase(big.chip, big.seconds, desktop);
  big.slot.textContent = who(desktop);
  big.task.textContent = desktop.task || "no task yet";
  big["instruction-full"].textContent = starting(desktop) ? "" : desktop.instruction;
  big.outcome.textContent = desktop.frame && !starting(desktop) ? outcome(desktop) || "step " + desktop.step : "";
  big.spec.textContent = `${desktop.spec} · ${desktop.episodes} episodes · ${Math.round(100 * utilisation(desktop))} % busy`;
  big.word.textContent = word(desktop);
  big.screen.classList.toggle("stale", starting(desktop));
  $("dialog").querySelector("ol").replaceChildren(...[...desktop.actions].reverse().map(actionRow));
  drawMarks(desktop);
  if (!desktop.frame) setImage(big.image, null);
  else if (big.frame !== desktop.frame) {
    const blob = await frame(desktop, "large");
    if (blob && openSlot === desktop.slot) { setImage(big.image, blob); big.frame = desktop.frame; }
  }
}

function actionRow(entry) {
  const item = document.createElement("li");
  item.append(make("span", "n", entry.step), make("span", "", describe(entry.action)), make("span", "s", duration(entry.seconds)));
  if (entry.error) item.append(make("span", "error", entry.error));
  return item;
}

function drawMarks(desktop) {  // where the last actions were; the newest is the strongest
  const unit = Math.min(desktop.width, desktop.height) / 100 || 1, recent = starting(desktop) ? [] : desktop.actions.slice(-MARKS);
  big.svg.setAttribute("viewBox", `0 0 ${desktop.width || 1} ${desktop.height || 1}`);
  big.svg.replaceChildren();
  recent.forEach((entry, index) =>
    markers(draw(big.svg, "g", { opacity: 0.3 + 0.7 * (index + 1) / recent.length }), entry.action, unit, entry.step));
}

// --- the beat

async function refreshDesktops() {
  const state = await (await ask("watch/state")).json();
  if (samples.length && state.uptime_s < samples[samples.length - 1].uptime_s) samples.length = 0;  // another server
  samples.push(state);
  while (state.uptime_s - samples[0].uptime_s > WINDOW_S) samples.shift();
  $("login").hidden = true;
  showStats(state);
  const shown = state.desktops.filter(live), wanted = shown.map(showCard);
  for (const [slot, parts] of cards)
    if (!wanted.includes(parts.card)) { inSight.unobserve(parts.card); setImage(parts.image, null); parts.card.remove(); cards.delete(slot); }
  wanted.forEach((card, index) => { if ($("grid").children[index] !== card) $("grid").insertBefore(card, $("grid").children[index]); });
  $("empty").hidden = shown.length > 0;
  $("empty").textContent = `No desktop runs now; ${state.desktops.length} may.`;
  await Promise.all([fetchFrames(state), showBig(state)]);
}

async function beat() {
  if (!document.hidden && shownView === "live") {
    try {
      await refreshDesktops();
      document.body.dataset.ready = samples.length;
    } catch (error) {
      $("note").textContent = error instanceof Unauthorized ? "" : "no answer from the cluster: trying again";
      if (error instanceof Unauthorized) { $("login").hidden = false; $("empty").hidden = true; }
    }
  }
  setTimeout(beat, PERIOD_MS);
}

$("close").addEventListener("click", () => $("dialog").close());
$("previous").addEventListener("click", () => neighbour(-1));
$("next").addEventListener("click", () => neighbour(1));
$("dialog").addEventListener("close", () => { openSlot = null; });
$("dialog").addEventListener("click", event => { if (event.target === $("dialog")) $("dialog").close(); });
$("dialog").addEventListener("keydown", event => {
  if (event.key === "ArrowLeft") neighbour(-1);
  if (event.key === "ArrowRight") neighbour(1);
});
return { title: "Desktops", start: beat, show() {} };
})();
