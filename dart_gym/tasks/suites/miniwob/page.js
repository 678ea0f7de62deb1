// Set-up of a MiniWoB++ page, evaluated once after it has loaded. Defines `dart`, which the scenario talks to.
//
// What changes for the user of the page, and why:
//   - an episode has a day, not 10 s: the policy's thinking time is not part of the task;
//   - no reward, timer, click marks or START cover on the screen: they leak the score, or are not the task;
//   - no animations and no blinking caret: an action's outcome is on the screen at once, and equal states look equal;
//   - no shortcuts of the browser (reload, zoom, new tab, menus, dragging text): they lead out of the task.
//
// Two handshakes with the scenario, so that nothing needs to be slept for:
//   - the sentinel: the scenario presses Pause after an action. Input arrives in order, so once the page has seen it,
//     it has handled the action as well;
//   - the beacon: a one-pixel line in magenta below the task's area. It is switched on together with a new state, and
//     the scenario waits until it is on the screen, switches it off and waits until it is gone: what is then shown
//     was drawn after the new state.
(() => {
  if (window.dart) return;

  core.EPISODE_MAX_TIME = 24 * 60 * 60 * 1000;
  core.countdownTimer = core.clearTimer = () => {};
  document.body.removeEventListener('click', core.canvasDrawClick);
  core.canvasDrawClick = core.canvasDrawElementClick = () => {};
  if (window.jQuery) jQuery.fx.off = true;

  const style = document.createElement('style');
  style.textContent = `
    html { overflow: hidden; }
    #sync-task-cover, #reward-display, #click-canvas { display: none !important; }
    *, *::before, *::after { transition: none !important; animation: none !important; caret-animation: manual !important;
      scroll-behavior: auto !important; }
    #dart-beacon { position: fixed; left: 0; bottom: 0; width: 100%; height: 1px; z-index: 2147483647;
      background: #f0f; pointer-events: none; }`;
  document.head.appendChild(style);
  const beacon = document.createElement('div');
  beacon.id = 'dart-beacon';
  beacon.hidden = true;
  document.documentElement.appendChild(beacon);

  let sentinels = 0;
  let awaited = null;
  const sawSentinel = () => {
    sentinels += 1;
    if (awaited && sentinels >= awaited.count) awaited.resolve(true);
  };
  const sentinel = count => sentinels >= count ? true : new Promise(resolve => {
    const timer = setTimeout(() => resolve(false), 2000);
    awaited = {count, resolve: seen => { clearTimeout(timer); awaited = null; resolve(seen); }};
  });

  const editing = new Set(['a', 'c', 'v', 'x', 'y', 'z', 'ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End',
    'Backspace', 'Delete', 'Insert']);
  const isShortcut = event => /^(F\d+|Browser\w+|Launch\w+|Alt|ContextMenu)$/.test(event.key) || event.altKey
    || ((event.ctrlKey || event.metaKey) && event.key.length > 0 && !editing.has(event.key) && event.key !== 'Control');
  const onKey = event => {
    if (event.code === 'Pause') {
      event.stopImmediatePropagation();
      event.preventDefault();
      if (event.type === 'keyup') sawSentinel();
    } else if (isShortcut(event)) {
      event.preventDefault();
    }
  };
  const prevent = event => event.preventDefault();
  const ofLink = event => { if (event.target.closest && event.target.closest('a') && (event.button !== 0 || event.ctrlKey
    || event.shiftKey || event.metaKey || event.altKey)) event.preventDefault(); };
  window.addEventListener('keydown', onKey, true);
  window.addEventListener('keyup', onKey, true);
  window.addEventListener('contextmenu', prevent, true);
  window.addEventListener('dragstart', prevent, true);
  window.addEventListener('click', ofLink, true);
  window.addEventListener('auxclick', ofLink, true);
  window.addEventListener('wheel', event => { if (event.ctrlKey) event.preventDefault(); }, {capture: true, passive: false});

  const utterance = () => {
    const said = core.getUtterance();
    return String(typeof said === 'string' ? said : said.utterance).replace(/\s+/g, ' ').trim();
  };

  window.dart = {
    // Start an episode once the page has seen the `count`-th sentinel.
    async reset(seed, count) {
      const seen = await sentinel(count);
      if (document.activeElement) document.activeElement.blur();
      Math.seedrandom(seed);
      core.startEpisodeReal();
      for (const input of document.querySelectorAll('input, textarea')) {
        input.autocomplete = 'off';
        input.spellcheck = false;
      }
      beacon.hidden = false;
      return {seen, instruction: utterance(), width: innerWidth, height: innerHeight, visible: !document.hidden};
    },

    // The state of the episode once the page has seen the `count`-th sentinel.
    async step(count) {
      const seen = await sentinel(count);
      if (!WOB_DONE_GLOBAL) beacon.hidden = false;
      return {seen, done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL};
    },

    hideBeacon() { beacon.hidden = true; },
  };
})();
