// Curves of a run, drawn from its metrics: one chart for each number, or for each family of numbers (success by task).
const MAIN = ["rollout.success", "data.success_rate", "held_out.success", "trainer.reward", "trainer.loss", "trainer.entropy", "trainer.grad_norm",
  "trainer.staleness/mean", "rollout.rollouts", "rollout.actions_per_min", "rollout.env_utilisation", "trainer.perf/step_s"];
const COLORS = 7, CHART = [300, 110];

function chart(run, module, name, t, lines) {
  const figure = make("figure", "curve"), caption = make("figcaption", "", name), value = make("span");
  const svg = document.createElementNS(SVG, "svg"), entries = Object.entries(lines);
  const known = entries.flatMap(([, values]) => values.filter(Number.isFinite));
  const [low, high] = [Math.min(...known), Math.max(...known)], [width, height] = CHART, span = t[t.length - 1] - t[0] || 1;
  const x = index => (t[index] - t[0]) / span * width, y = value => height - 3 - (value - low) / (high - low || 1) * (height - 6);
  svg.setAttribute("viewBox", `0 0 ${width} ${height}`);
  svg.setAttribute("preserveAspectRatio", "none");
  svg.setAttribute("role", "img");
  draw(svg, "line", { class: "axis", x1: 0, x2: width, y1: height - 0.5, y2: height - 0.5 });
  entries.forEach(([, values], line) => {
    let path = "";
    values.forEach((value, index) => {  // a gap where nothing was measured
      if (Number.isFinite(value)) path += (path === "" || !Number.isFinite(values[index - 1]) ? "M" : "L") + `${x(index).toFixed(1)},${y(value).toFixed(1)}`;
    });
    draw(svg, "path", { class: "c" + line % COLORS, d: path });
  });
  const cursor = draw(svg, "line", { class: "cursor", y1: 0, y2: height, x1: -9, x2: -9 });
  let at = t.length - 1;
  const lastOf = values => { for (let index = at; index >= 0; index--) if (Number.isFinite(values[index])) return values[index]; };
  const reading = () => {
    const values = entries.map(([, values]) => lastOf(values)).filter(Number.isFinite);
    return (entries.length > 1 ? "mean " : "") + short(values.reduce((sum, value) => sum + value, 0) / values.length);
  };
  const move = index => {
    at = Math.max(0, Math.min(t.length - 1, index));
    value.textContent = `${reading()} after ${duration(t[at] - t[0])}`;
    for (const end of ["x1", "x2"]) cursor.setAttribute(end, x(at));
  };
  const settle = () => { at = t.length - 1; value.textContent = reading(); for (const end of ["x1", "x2"]) cursor.setAttribute(end, -9); };
  svg.addEventListener("pointermove", event => {
    const box = svg.getBoundingClientRect(), moment = t[0] + (event.clientX - box.left) / box.width * span;
    move(t.findIndex(one => one >= moment) < 0 ? t.length - 1 : t.findIndex(one => one >= moment));
  });
  svg.addEventListener("pointerleave", settle);
  figure.tabIndex = 0;
  figure.addEventListener("keydown", event => {
    const by = { ArrowLeft: -1, ArrowRight: 1, Home: -Infinity, End: Infinity }[event.key];
    if (by !== undefined) { event.preventDefault(); event.stopPropagation(); move(at + by); }
  });
  figure.addEventListener("blur", settle);
  settle();
  svg.setAttribute("aria-label", `${name}: ${reading()} at the end, between ${short(low)} and ${short(high)}`);
  const ends = make("div", "ends"), names = make("div", "names");
  caption.append(value);
  ends.append(make("span", "", `${short(low)} to ${short(high)}`), make("span", "", `${run ? run + " · " : ""}${module}, ${duration(span)}`));
  if (entries.length > 1) for (const [line, [label]] of entries.entries()) {
    const one = make("span"), color = make("i", "c" + line % COLORS);
    one.append(color, label);
    names.append(one);
  }
  figure.append(caption, svg, ends, ...(entries.length > 1 ? [names] : []));
  return figure;
}

const curves = (() => {
  let runs = [], size = "";

  function series([module, lines]) {  // (N,) seconds, and (N,) values or gaps by name and label
    const rows = lines.flatMap(line => { try { return [JSON.parse(line)]; } catch { return []; } }).filter(row => row && Number.isFinite(row.t));
    const found = {};
    rows.forEach((row, index) => {
      for (const [name, value] of Object.entries(row)) if (name !== "t")
        for (const [label, one] of value && typeof value === "object" && !Array.isArray(value) ? Object.entries(value) : [["", value]])
          if (Number.isFinite(one)) ((found[name] ??= {})[label] ??= Array(rows.length).fill(null))[index] = one;
    });
    return { module, t: rows.map(row => row.t), series: found };
  }

  function charts(wanted) {  // those whose name `wanted` gives a rank, in that order
    const found = [];
    for (const run of runs) for (const { module, t, series } of run.modules) for (const [name, lines] of Object.entries(series)) {
      const rank = wanted(`${module}.${name}`);
      if (rank >= 0) found.push([rank, () => chart(runs.length > 1 ? run.name : "", module, name, t, lines)]);
    }
    return found.sort((a, b) => a[0] - b[0]).map(([, make]) => make());
  }

  const main = () => charts(name => MAIN.indexOf(name));

  function show() {
    const words = $("metric").value.trim().toLowerCase();
    const found = words ? charts(name => name.toLowerCase().includes(words) ? 0 : -1) : main();
    $("curves").replaceChildren(...found);
    const all = runs.reduce((sum, run) => sum + run.modules.reduce((sum, one) => sum + Object.keys(one.series).length, 0), 0);
    $("metric-count").textContent = `${found.length} of ${all} metrics`;
  }

  async function refresh() {  // whether there is more than before
    const text = await (await ask("watch/metrics")).text(), changed = text !== size;
    if (changed) { size = text; runs = JSON.parse(text).map(run => ({ name: run.name, modules: Object.entries(run.modules || {}).map(series) })); }
    return changed;
  }

  async function beat() {
    if (!document.hidden) try { if (await refresh()) { if (shownView === "training" && !$("curves").matches(":focus-within")) show(); episodesView.curves(); } } catch (error) { said(error); }
    setTimeout(beat, 5000);
  }

  $("metric").addEventListener("input", show);
  $("which").addEventListener("submit", event => event.preventDefault());
  return { title: "Training", show, start: beat, main };
})();
