// Set-up of a MiniWoB++ page, evaluated once after it has loaded. Defines `dart`, which the scenario talks to.
//
// What changes for the user of the page, and why:
//   - an episode has a day, not 10 s: the policy's thinking time is not part of the task;
//   - no reward, timer, click marks or START cover on the screen: they leak the score, or are not the task;
//   - no animations and no blinking caret: an action's outcome is on the screen at once, and equal states look equal;
//   - no shortcuts of the browser (reload, zoom, new tab, menus, dragging text): they lead out of the task.
//
// Two handshakes with the scenario, so that nothing needs to be slept for:
//   - the sentinel: after an action the scenario presses Pause and clicks the middle button, which do nothing on these
//     pages. Keys arrive in order, and so do clicks (but keys overtake clicks), so once the page has seen both, it has
//     handled the action as well. Should a policy press them too, the counts are brought in line after each frame;
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

  const seen = {keys: 0, clicks: 0};
  let awaited = null;
  const count = kind => {
    seen[kind] += 1;
    if (awaited && awaited.number <= Math.min(seen.keys, seen.clicks)) awaited.resolve(true);
  };
  const sentinel = (number, patience) => number <= Math.min(seen.keys, seen.clicks) || new Promise(resolve => {
    const timer = setTimeout(() => awaited.resolve(false), patience);
    awaited = {number, resolve: arrived => { clearTimeout(timer); awaited = null; resolve(arrived); }};
  });
  const swallow = event => { event.stopImmediatePropagation(); event.preventDefault(); };

  const editing = new Set(['a', 'c', 'v', 'x', 'y', 'z', 'ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End',
    'Backspace', 'Delete', 'Insert']);
  const isShortcut = event => /^(F\d+|Browser\w+|Launch\w+|Alt|ContextMenu)$/.test(event.key) || event.altKey
    || ((event.ctrlKey || event.metaKey) && event.key.length > 0 && !editing.has(event.key) && event.key !== 'Control');
  const onKey = event => {
    if (event.code === 'Pause') {
      swallow(event);
      if (event.type === 'keyup') count('keys');
    } else if (isShortcut(event)) {
      event.preventDefault();
    }
  };
  const onButton = event => {
    if (event.button !== 1) return;
    swallow(event);
    if (event.type === 'mouseup') count('clicks');
  };
  const prevent = event => event.preventDefault();
  const ofLink = event => { if (event.target.closest && event.target.closest('a') && (event.button !== 0 || event.ctrlKey
    || event.shiftKey || event.metaKey || event.altKey)) event.preventDefault(); };
  window.addEventListener('keydown', onKey, true);
  window.addEventListener('keyup', onKey, true);
  for (const type of ['mousedown', 'mouseup', 'auxclick']) {
    window.addEventListener(type, onButton, true);
  }
  window.addEventListener('contextmenu', prevent, true);
  window.addEventListener('dragstart', prevent, true);
  window.addEventListener('click', ofLink, true);
  window.addEventListener('auxclick', ofLink, true);
  window.addEventListener('wheel', event => { if (event.ctrlKey) event.preventDefault(); }, {capture: true, passive: false});

  const utterance = () => {
    const said = core.getUtterance();
    return String(typeof said === 'string' ? said : said.utterance).replace(/\s+/g, ' ').trim();
  };

  // Wait until all of `number` sentinels came, or nothing comes any more (one was lost, or a user's keys count as
  // sentinels), and return how many there were.
  const align = async number => {
    for (let before = null; seen.keys !== number || seen.clicks !== number;) {
      const now = `${seen.keys} ${seen.clicks}`;
      if (now === before) {
        number = seen.keys = seen.clicks = Math.max(seen.keys, seen.clicks);
        break;
      }
      before = now;
      await new Promise(resolve => setTimeout(resolve, 100));
    }
    return number;
  };

  // A fresh page gets no input before its first frame is shown.
  const painted = new Promise(resolve => new PerformanceObserver((list, observer) => {
    observer.disconnect();
    resolve();
  }).observe({type: 'paint', buffered: true}));

  window.dart = {
    painted: () => Promise.race([painted.then(() => true), new Promise(resolve => setTimeout(resolve, 1000, false))]),

    // Whether a sentinel has come, within `patience` ms, and how many there were.
    async listens(number, patience) {
      const arrived = await sentinel(1, patience);
      return {arrived, sentinels: arrived ? await align(number) : 0};
    },

    // Start an episode once the page has seen the `number`-th sentinel.
    async reset(seed, number) {
      const arrived = await sentinel(number, 2000);
      if (document.activeElement) document.activeElement.blur();
      Math.seedrandom(seed + '\0');  // as for a number: the generator takes the strings 1 and 11 for the same
      core.startEpisodeReal();
      for (const input of document.querySelectorAll('input, textarea')) {
        input.autocomplete = 'off';
        input.spellcheck = false;
      }
      beacon.hidden = false;
      return {arrived, instruction: utterance(), width: innerWidth, height: innerHeight, visible: !document.hidden};
    },

    // The state of the episode once the page has seen the `number`-th sentinel.
    async step(number) {
      const arrived = await sentinel(number, 2000);
      if (!WOB_DONE_GLOBAL) beacon.hidden = false;
      return {arrived, done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL};
    },

    // Returns how many sentinels there were.
    hideBeacon(number) {
      beacon.hidden = true;
      return align(number);
    },
  };
})();
