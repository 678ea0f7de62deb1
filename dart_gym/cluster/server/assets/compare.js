// Two policies on the same tasks and seeds: what the paired test says, and each pair of episodes side by side.
const compareView = (() => {
  let touched = false;  // somebody chose the sources
  let pairs = [], chosen = ["", ""], token = 0, turn = 0;
  const tools = make("div", "row tools"), name = make("b"), back = make("button", "", "‹ All pairs"), roots = [make("div"), make("div")];
  tools.append(back, name);
  $("both").append(tools, ...roots);
  const sides = roots.map((root, index) => makeReplay(root, step => follow(1 - index, step)));
  let following = false;

  function follow(other, step) {  // both show the same step
    if (following) return;
    following = true;
    if (step !== sides[other].shown && sides[other].last >= 0) sides[other].show(step);
    following = false;
  }

  // The two sources that share most episodes, evaluations before all others; the one that was played first is A.
  function best(names, rows) {
    const of = names.slice(0, 40).map(name => {
      const its = rows.filter(row => row.source === name), keys = new Set(its.filter(row => outcomeKind(row) !== "lost").map(row => `${row.seed} ${row.task_id}`));
      return { name, keys, tested: its.every(row => row.kind === "evaluation"), ended: Math.max(...its.map(row => row.ended_at)) };
    });
    let found = null, most = [-1, -1];
    for (const [index, a] of of.entries()) for (const b of of.slice(index + 1)) {
      const shared = [...a.keys].filter(key => b.keys.has(key)).length, rank = [shared && a.tested && b.tested ? 1 : 0, shared];
      if (rank[0] > most[0] || rank[0] === most[0] && rank[1] > most[1]) [found, most] = [a.ended <= b.ended ? [a, b] : [b, a], rank];
    }
    return found ? found.map(one => one.name) : [names[0], names[0]];
  }

  function sources(names, rows) {
    const selects = [$("side-a"), $("side-b")], pair = touched && selects.every(select => names.includes(select.value)) ?
      selects.map(select => select.value) : best(names, rows);
    for (const [index, select] of selects.entries()) {
      select.replaceChildren(...names.map(name => new Option(name, name)));
      select.value = pair[index] ?? "";
    }
  }

  const delta = value => (value > 0 ? "+" : value < 0 ? "−" : "±") + (100 * Math.abs(value)).toFixed(0) + " points";

  const others = lines => lines.length ? `; beware, they differ in more: ${lines.join("; ")}` : "";

  async function judge() {
    const [a, b] = chosen = [$("side-a").value, $("side-b").value], asked = ++token;
    pairs = [];
    let words;
    try {
      const found = await (await ask(`watch/compare?a=${encodeURIComponent(a)}&b=${encodeURIComponent(b)}`)).json();
      words = `A ${percent(found.rate_a)}, B ${percent(found.rate_b)}: ${delta(found.difference)} (95 %: ${delta(found.interval[0])} to ${delta(found.interval[1])}), ` +
        `p = ${found.p_value.toPrecision(2)} over ${found.pairs} ${found.unit}s: ${found.verdict}` +
        others(found.differs.filter(line => !line.startsWith("policy")));  // which is what is compared
    } catch (error) {
      if (error instanceof Unauthorized) throw error;
      words = error.message;
    }
    if (asked !== token) return;
    $("verdict").textContent = words;
    const keyed = source => new Map(episodesView.rows().filter(row => row.source === source).map(row => [`${row.seed} ${row.task_id}`, row]));
    const [left, right] = [keyed(a), keyed(b)];
    pairs = [...left.keys()].filter(key => right.has(key)).map(key => [left.get(key), right.get(key)])
      .sort((x, y) => x[0].task_id < y[0].task_id ? -1 : x[0].task_id > y[0].task_id ? 1 : x[0].seed - y[0].seed);
    list();
  }

  const differ = ([a, b]) => outcomeKind(a) !== outcomeKind(b) || a.score !== b.score;

  function list() {
    const shown = pairs.map((pair, index) => [pair, index]).filter(([pair]) => !$("differing").checked || differ(pair));
    $("pairs").replaceChildren(shown.length ? table([["Task", ""], ["seed", "n"], ["A", "n"], ["B", "n"], ["actions of A", "n"], ["of B", "n"]], shown.map(([[a, b], index]) => {
      const button = make("button", "", a.task_id);
      button.addEventListener("click", () => setPlace("compare", index + 1));
      return [button, a.seed, scoreChip(a), scoreChip(b), a.num_actions, b.num_actions];
    })) : make("p", "empty", "No pair of episodes is like that."));
    document.body.dataset.pairs = shown.length;
  }

  async function show(number) {
    const mine = ++turn;
    document.title = "Compare";
    await episodesView.complete;  // a part of the episodes would be another comparison
    if (chosen[0] !== $("side-a").value || chosen[1] !== $("side-b").value || !pairs.length) await judge();
    if (mine !== turn) return;  // another pair was asked for meanwhile
    const pair = pairs[number - 1];
    $("both").hidden = !pair;
    $("compare").classList.toggle("open", Boolean(pair));
    if (!pair) return;
    name.textContent = `${pair[0].task_id}, seed ${pair[0].seed}`;
    const data = await Promise.all(pair.map(async row => (await ask(`watch/episode/${row.id}`)).json()));
    if (mine === turn) sides.forEach((side, index) => side.load(data[index]));
  }

  back.addEventListener("click", () => setPlace("compare"));
  $("sides").addEventListener("submit", event => event.preventDefault());
  for (const side of ["side-a", "side-b"]) $(side).addEventListener("change", () => { touched = true; judge().catch(said); });
  $("differing").addEventListener("change", list);
  return { title: "Compare", sources, show, start() {},
    key(event) {
      if (event.key === "Escape" && !$("both").hidden) { setPlace("compare"); return true; }
      if ($("both").hidden) return false;
      const here = sides[0].last >= sides[1].last ? 0 : 1;  // the longer one leads
      return sides[here].key(event);
    } };
})();
