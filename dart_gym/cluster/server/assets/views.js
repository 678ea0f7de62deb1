// Which view is shown: it stands in the address's fragment (#episodes/12/3), so that going back leads back.
const VIEWS = { live: liveView, episodes: episodesView, compare: compareView, training: curves, play: playView };
const offered = config.episode ? [] : config.views.flatMap(name => name === "episodes" ? ["episodes", "compare"] : [name]);
let shownView = "";

function setPlace(...parts) {
  const place = "#" + parts.join("/");
  if (location.hash === place) return;
  const [view, first] = location.hash.slice(1).split("/");
  if (view === parts[0] && first === String(parts[1] ?? "") && parts.length > 2) history.replaceState(null, "", place);  // another step
  else history.pushState(null, "", place);
  go();
}

function said(error) {  // what could not be had; the page goes on trying
  if (error && !(error instanceof Unauthorized)) $("note").textContent = `no answer (${error.message}): trying again`;
  else if ($("note").textContent.startsWith("no answer")) $("note").textContent = "";
}

function reveal(name) {
  for (const view of document.querySelectorAll(".view")) view.hidden = view.id !== name;
  for (const link of $("nav").children) link.toggleAttribute("aria-current", link.hash === "#" + name);
  if (shownView !== name) document.title = VIEWS[name].title;
  $("heading").textContent = VIEWS[name].title;
  $("stats").hidden = name !== "live";
  shownView = name;
}

function go() {
  const [asked, ...rest] = location.hash.slice(1).split("/"), name = offered.includes(asked) ? asked : offered[0];
  reveal(name);
  Promise.resolve(VIEWS[name].show(...(asked === name ? rest : []))).catch(said);
}

async function begin() {
  for (const name of offered.length > 1 ? offered : []) {
    const link = make("a", "", VIEWS[name].title);
    link.href = "#" + name;
    $("nav").append(link);
  }
  $("heading").className = offered.length > 1 ? "unseen" : "";
  const asked = location.hash.slice(1).split("/")[0];
  reveal(offered.includes(asked) ? asked : offered[0]);
  for (const name of offered) try { await VIEWS[name].start(); } catch (error) { said(error); }
  addEventListener("hashchange", go);
  addEventListener("popstate", go);
  go();
}

function beginFile() {  // the page is a file with one episode in it
  const root = make("div");
  for (const element of [$("top"), ...document.querySelectorAll(".view")]) element.remove();
  document.querySelector("main").append(root);
  document.title = `${config.episode.task_id} · ${config.episode.terminal}`;
  const replay = makeReplay(root, step => history.replaceState(null, "", "#" + (step + 1)));
  replay.load(config, (parseInt(location.hash.slice(1), 10) || 1) - 1);
  return replay;
}

const only = config.episode ? beginFile() : null;
addEventListener("keydown", event => {
  if (event.ctrlKey || event.altKey || event.metaKey || $("dialog").open || event.target instanceof HTMLInputElement && event.target.type !== "range" ||
    event.target instanceof HTMLSelectElement) {
    if (event.key === "Escape" && event.target instanceof HTMLElement) event.target.blur();
    return;
  }
  if (only ? only.key(event) : VIEWS[shownView].key?.(event)) event.preventDefault();
});
$("login").addEventListener("submit", event => {
  event.preventDefault();
  token = $("token").value.trim();
  sessionStorage.setItem("token", token);
  $("login").hidden = true;
  go();
});
if (!only) begin();
