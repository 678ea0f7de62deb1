// Recorded episodes: a list that is filtered by task, source, outcome and score, and beside it one of them, or all in figures.
const outcomeKind = row => row.lost_by || row.score === null ? "lost" : row.score >= 1 ? "success" : "failure";
const rateOf = rows => {
  const counted = rows.filter(row => outcomeKind(row) !== "lost");
  return counted.length ? counted.filter(row => outcomeKind(row) === "success").length / counted.length : NaN;
};
const percent = share => Number.isNaN(share) ? "–" : (100 * share).toFixed(share > 0 && share < 0.1 ? 1 : 0) + " %";

function scoreChip(row) {
  const kind = outcomeKind(row), chip = make("span", "chip " + { success: "good", failure: "bad", lost: "warn" }[kind]);
  chip.textContent = kind === "lost" ? "lost" : short(row.score);
  return chip;
}

function shareBar(share) {
  const bar = make("div", "bar"), fill = make("i");
  fill.style.width = 100 * (share || 0) + "%";
  bar.append(fill);
  return bar;
}

function table(heads, rows) {
  const whole = make("table"), head = make("tr"), body = make("tbody"), top = make("thead");
  head.append(...heads.map(([name, kind]) => { const cell = make("th", kind, name); cell.scope = "col"; return cell; }));
  body.append(...rows.map(cells => {
    const row = make("tr");
    row.append(...cells.map((content, index) => { const cell = make("td", heads[index][1]); cell.append(content); return cell; }));
    return row;
  }));
  top.append(head);
  whole.append(top, body);
  return whole;
}

const episodesView = (() => {
  let rows = [], sources = [], version = 0, unread = 0, visible = [], active = -1, opened = null;
  let loaded = null, pending = "";  // the episode in the replay; the place, "id/step", that is being fetched
  let allRead;
  const complete = new Promise(resolve => { allRead = resolve; });
  const options = new Map();  // id of an episode -> its element in the list
  const replay = makeReplay($("replay"), step => { if (opened === loaded) setPlace("episodes", opened, step + 1); }, () => setPlace("episodes"),
    (id, step) => setPlace("episodes", id, step));

  function option(row) {
    const element = make("div", "episode");
    element.role = "option";
    element.id = "episode-" + row.id;
    element.append(scoreChip(row), make("span", "name", row.task_id),
      make("span", "more", [`seed ${row.seed}`, "fork_step" in row ? `fork at step ${row.fork_step + 1}` : "", spaced(row.terminal), counted(row.num_actions, "action"), row.policy].filter(Boolean).join(" · ")));
    element.ariaSelected = "false";
    element.addEventListener("click", () => open(row.id));
    row.words = `${row.task_id} ${row.policy} ${row.terminal} ${row.instruction}${"fork_step" in row ? " fork" : ""}`.toLowerCase();
    options.set(row.id, element);
    return element;
  }

  function fits(row) {
    const words = $("words").value.trim().toLowerCase().split(/\s+/), source = $("source").value, least = $("least").value, most = $("most").value;
    return words.every(word => row.words.includes(word)) && (source === "" || row.source === source) &&
      (!$("outcome").value || outcomeKind(row) === $("outcome").value) &&
      (least === "" || row.score !== null && row.score >= +least) && (most === "" || row.score !== null && row.score <= +most);
  }

  function filter() {
    visible = [];
    for (const row of rows) {
      const shown = fits(row);
      options.get(row.id).hidden = !shown;
      if (shown) visible.push(row);
    }
    $("count").textContent = unread ? `${rows.length} of ${rows.length + unread} read` : visible.length === rows.length ? `${rows.length} episodes` : `${visible.length} of ${rows.length}`;
    activate(Math.max(0, visible.findIndex(row => row.id === opened)), false);
    if (opened === null) overview();
  }

  function activate(index, scroll = true) {
    active = Math.max(0, Math.min(visible.length - 1, index));
    $("list").querySelector(".active")?.classList.remove("active");
    const element = visible.length ? options.get(visible[active].id) : null;
    if (!element) { $("list").removeAttribute("aria-activedescendant"); return; }
    element.classList.add("active");
    $("list").setAttribute("aria-activedescendant", element.id);
    if (scroll) element.scrollIntoView({ block: "nearest" });
  }

  // --- all of them

  function tile(value, name) {
    const element = make("div", "tile");
    element.append(make("b", "", value), name);
    return element;
  }

  const KINDS = [["evaluation", "evaluation episodes"], ["rollout", "rollouts"], ["demonstration", "demonstrations"]];

  function overview() {  // what a policy was tested on, what it learnt from, and what it was shown are figures of their own
    const byTask = Map.groupBy(visible, row => row.task_id), tiles = make("div", "tiles"), failed = visible.filter(row => outcomeKind(row) === "failure");
    for (const [kind, words] of KINDS) {
      const of = visible.filter(row => row.kind === kind);
      if (of.length) tiles.append(tile(percent(rateOf(of)), "succeeded"), tile(String(of.length), words));
    }
    tiles.append(tile(String(byTask.size), "tasks"),
      tile(String(failed.length), "failed"), tile(String(visible.filter(row => outcomeKind(row) === "lost").length), "lost"));
    const played = visible.filter(row => row.kind !== "demonstration"), tested = played.filter(row => row.kind === "evaluation");
    const [main, of] = tested.length ? [tested, "evaluation"] : played.length ? [played, "rollouts"] : [visible, "demonstrations"];
    const lines = [...Map.groupBy(main, row => row.task_id)].sort((a, b) => (rateOf(a[1]) || 0) - (rateOf(b[1]) || 0)).map(([task, its]) => {
      const button = make("button", "", task), share = rateOf(its), steps = its.reduce((sum, row) => sum + +row.num_actions, 0) / its.length;
      button.addEventListener("click", () => { $("words").value = task; filter(); $("list").focus(); });
      return [button, shareBar(share), percent(share), String(its.length), steps.toFixed(1)];
    });
    const beside = make("div", "curves"), keys = make("p", "keys");
    beside.id = "beside";
    for (const [key, does] of [["F", "next failure"], ["J K", "next, previous"], ["← →", "steps"], ["E", "next problem"], ["/", "filter"], ["Esc", "back to all"]])
      keys.append(make("kbd", "", key), ` ${does}\u2003`);
    $("overview").replaceChildren(tiles, keys, ...(lines.length ? [table([["Task, weakest first", ""], ["", ""], [`succeeded, ${of}`, "n"], ["episodes", "n"], ["actions", "n"]], lines)] :
      [make("p", "empty", rows.length ? "No episode is like that." : "No episode was recorded here yet.")]), beside);
    showCurves();
  }

  function showCurves() {
    if ($("beside") && !$("beside").matches(":focus-within")) $("beside").replaceChildren(...curves.main().slice(0, 6));
  }

  // --- one of them

  function open(id) { setPlace("episodes", id, 0); }

  async function show(id, step) {  // step: from 1; 0 for the first with a problem, or else the end of a failure
    const row = rows.find(one => one.id === +id);
    step = +step || 0;
    $("overview").hidden = Boolean(row);
    $("replay").hidden = !row;
    $("episodes").classList.toggle("open", Boolean(row));
    if (opened !== null) options.get(opened)?.setAttribute("aria-selected", "false");
    if (!row) { opened = null; pending = ""; document.title = "Episodes"; overview(); return; }
    const before = opened;
    opened = row.id;
    options.get(opened).setAttribute("aria-selected", "true");
    activate(visible.indexOf(row));
    document.title = `${row.task_id} · ${row.terminal}`;
    if (before === opened && opened === loaded && step) { pending = ""; if (step - 1 !== replay.shown) replay.show(step - 1); return; }
    const place = `${row.id}/${step}`;
    if (pending === place) return;
    pending = place;
    try {
      const data = await (await ask(`watch/episode/${row.id}`)).json();
      if (pending !== place) return;  // whoever looks on has gone on meanwhile
      loaded = row.id;
      replay.load(data, step ? step - 1 : 0);
    } finally { if (pending === place) pending = ""; }
    document.body.dataset.loaded = "episode-" + row.id;
    if (!step && outcomeKind(row) !== "success") replay.show(replay.trouble >= 0 ? replay.trouble : replay.last);
  }

  const anyone = () => true;

  function neighbour(by, wanted = anyone) {  // the next one in the list that is wanted; round about at its end
    const successes = visible.filter(row => outcomeKind(row) === "success");
    const success = KINDS.map(([kind]) => successes.find(row => row.kind === kind)).find(Boolean);
    if (opened === null && by > 0 && wanted === anyone && success) { open(success.id); return; }  // a look at what works comes first
    const here = visible.findIndex(row => row.id === opened), from = here < 0 ? (by > 0 ? -1 : visible.length) : here;
    for (let step = 1; step <= visible.length; step++) {
      const row = visible[((from + by * step) % visible.length + visible.length) % visible.length];
      if (wanted(row)) { open(row.id); return; }
    }
    $("note").textContent = "none of these failed";
  }

  const failure = by => neighbour(by, row => outcomeKind(row) !== "success");

  function key(event) {
    if (event.key === "/") { $("words").focus(); $("words").select(); return true; }
    if (event.key === "f" || event.key === "F") { failure(event.shiftKey ? -1 : 1); return true; }
    if (event.key === "j" || event.key === "k") { neighbour(event.key === "j" ? 1 : -1); return true; }
    if (event.key === "Escape" && opened !== null) { setPlace("episodes"); $("list").focus(); return true; }
    return opened !== null && event.target !== $("list") && replay.key(event);
  }

  $("list").addEventListener("keydown", event => {
    const by = { ArrowUp: -1, ArrowDown: 1, PageUp: -10, PageDown: 10, Home: -Infinity, End: Infinity }[event.key];
    if (by !== undefined) activate(active + by);
    else if ((event.key === "Enter" || event.key === " ") && visible[active]) open(visible[active].id);
    else return;
    event.preventDefault();
    event.stopPropagation();
  });
  $("filter").addEventListener("input", filter);
  $("filter").addEventListener("submit", event => { event.preventDefault(); $("list").focus(); });
  $("failure-before").addEventListener("click", () => failure(-1));
  $("failure-after").addEventListener("click", () => failure(1));

  async function refresh() {
    const found = await (await ask(`watch/episodes?version=${version}`)).json();
    if (found.version === version && found.unread === unread && version) return;
    unread = found.unread;
    if (!unread) allRead();
    const known = new Map(rows.map(row => [row.id, row])), before = $("source").value, scrolled = $("list").scrollTop;
    const merged = found.whole ? new Map() : new Map(known);  // an answer has what is new, or all where something is gone
    for (const row of found.episodes) {
      const old = known.get(row.id), same = old && old.terminal === row.terminal && old.score === row.score && old.num_actions === row.num_actions;
      if (same) row.words = old.words;
      else option(row);
      merged.set(row.id, row);
    }
    const order = (one, other) => one < other ? -1 : one > other ? 1 : 0;
    version = found.version;
    rows = [...merged.values()].sort((a, b) => order(a.source, b.source) || order(a.task_id, b.task_id) || a.seed - b.seed);
    sources = [...new Set(rows.map(row => row.source))];
    const all = document.createDocumentFragment();
    for (const row of rows) all.append(options.get(row.id));
    $("list").replaceChildren(all);
    $("list").scrollTop = scrolled;
    $("source").replaceChildren(new Option("everything", ""), ...sources.map(name => new Option(name, name)));
    $("source").value = before;
    filter();
    if (opened !== null) options.get(opened)?.setAttribute("aria-selected", "true");
    else if (shownView === "episodes" && location.hash.startsWith("#episodes/")) go();  // it may have been read by now
    document.body.dataset.first ??= Math.round(performance.now());  // since the page was asked for
    if (unread) return;
    compareView.sources(sources, rows);
    document.body.dataset.listed = Math.round(performance.now());
    document.body.dataset.version = version;
  }

  async function beat() {
    let pause = 3000;
    if (!document.hidden) try { await refresh(); pause = unread ? 0 : pause; said(null); } catch (error) { said(error); }
    setTimeout(beat, pause);
  }

  return { title: "Episodes", show, key, complete, curves: showCurves, rows: () => rows,
    async start() {
      await refresh();
      if (rows.length === 1 && !location.hash) history.replaceState(null, "", `#episodes/${rows[0].id}`);  // it was named alone
      setTimeout(beat, unread ? 0 : 3000);
    } };
})();
