// An episode among its forks: a line for each of them, which leaves its source's at the step from which it was played on.
const TREE_ROW = 24, TREE_EDGE = 9, TREE_WIDTH = 420, TREE_STEP = 18;
const branchKind = branch => branch.lost_by || branch.score === null ? "warn" : branch.score >= 1 ? "good" : "bad";

function branchWords(branch) {
  const from = branch.parent === null ? (branch.step ? `from step ${branch.step + 1}` : "from its beginning") : `fork at step ${branch.step + 1}`;
  const ended = branch.lost_by === "fork" ? "given up: its replay came out differently" : branch.lost_by ? `lost by the ${branch.lost_by}` : spaced(branch.terminal);
  return [from, ended, branch.lost_by === "fork" ? "" : counted(branch.steps, "step")].filter(Boolean).join(" · ");
}

// Fills `root` with the branches of `data`; `open(id, step)` leads to a step, from 1, of another of them. Returns what marks a step of `here`.
function showTree(root, data, open) {
  const branches = data.tree || [], row = new Map(branches.map((branch, index) => [branch.id, index]));
  root.hidden = !branches.length;
  root.replaceChildren();
  if (!branches.length) return () => {};
  const here = branches.find(branch => branch.id === data.id) || branches[0];
  const longest = Math.max(1, ...branches.map(branch => branch.step + branch.steps));
  const unit = Math.min(TREE_STEP, (TREE_WIDTH - 2 * TREE_EDGE) / longest), radius = Math.min(3.5, unit / 3);
  const x = step => TREE_EDGE + unit * step, y = branch => TREE_ROW * (row.get(branch.id) + 0.5);
  const depth = branch => branch.parent === null ? 0 : 1 + depth(branches[row.get(branch.parent)]);
  const svg = draw(root, "svg", { width: x(longest) + TREE_EDGE, height: TREE_ROW * branches.length, "aria-hidden": "true" });
  const list = make("ol"), marks = [];
  for (const branch of branches) {
    const source = branches[row.get(branch.parent)], kind = branchKind(branch), end = branch.step + branch.steps;
    let from = `M${x(branch.step)},${y(branch)}`;
    if (source) {  // between the dots of the rows that it passes; forks of forks beside those of their source
      const beside = x(branch.step) - unit * (0.4 + 0.2 * (depth(source) % 2)), bend = TREE_ROW / 3;
      from = `M${x(branch.step)},${y(source)}L${beside},${y(source) + bend}V${y(branch) - bend}L${x(branch.step)},${y(branch)}`;
    }
    draw(svg, "path", { d: `${from}H${x(end)}`, class: "line" });
    for (let step = branch.step; step < end; step++) {
      const dot = draw(svg, "circle", { cx: x(step), cy: y(branch), r: radius, class: "step" });
      if (branch === here) marks.push(dot);
    }
    draw(svg, "circle", { cx: x(end), cy: y(branch), r: 1.6 * radius, class: `end ${kind}` });
    if (branch === here) marks.push(svg.lastChild);
    list.append(branchItem(branch, here, open));
  }
  const box = make("div", "branches");
  box.append(svg, list);
  root.append(box);
  if (data.more) root.append(make("p", "facts", `and ${data.more} more`));
  return shown => marks.forEach((mark, index) => mark.classList.toggle("shown", index === shown));
}

function branchItem(branch, here, open) {
  const item = make("li"), button = make("button"), chip = make("span", "chip " + branchKind(branch));
  chip.textContent = branch.lost_by || branch.score === null ? "lost" : short(branch.score);
  button.append(chip, make("span", "", branchWords(branch)));
  if (branch.detail) button.title = branch.detail;
  if (branch === here) button.setAttribute("aria-current", "true");
  const fork = here.step >= branch.step && here.parent === branch.id ? here.step - branch.step + 1 : 1;  // where the one that is looked at left it
  button.addEventListener("click", () => open(branch.id, fork));
  item.append(button);
  return item;
}
