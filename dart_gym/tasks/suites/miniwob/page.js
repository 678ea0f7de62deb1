// Set-up of a MiniWoB++ page, evaluated once after it has loaded. Defines `dart`, which the scenario talks to.
//
// What changes for the user of the page, and why:
//   - an episode has a day, not 10 s: the policy's thinking time is not part of the task;
//   - no reward, timer, click marks or START cover on the screen: they leak the score, or are not the task;
//   - no animations and no blinking caret: an action's outcome is on the screen at once, and equal states look equal;
//   - no shortcuts of the browser (reload, zoom, new tab, menus, dragging text): they lead out of the task.
//
// Two handshakes with the scenario, so that nothing needs to be slept for:
//   - the sentinel: after an action the scenario presses Pause or clicks the middle button, which do nothing on these
//     pages. Keys arrive in order, and so do clicks (but keys overtake clicks), so once the page has seen the one that
//     is of the action's kind, it has handled the action as well. A policy may press them too: see `settled`;
//   - the beacon: the line of pixels below the screen. It takes its next colour together with a new state, so that the
//     frame with this colour shows the state. Pages are laid out as if the line were not there.
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
      pointer-events: none; }`;
  document.head.appendChild(style);
  const beacon = document.createElement('div');
  beacon.id = 'dart-beacon';
  document.documentElement.appendChild(beacon);
  Object.defineProperty(document.documentElement, 'clientHeight', {get: () => innerHeight - 1});
  let states = 0;
  const signal = () => {
    states = states % 255 + 1;
    beacon.style.background = `rgb(${states}, ${255 - states}, 255)`;
    return states;
  };

  const seen = {keys: 0, clicks: 0};
  let awaited = null;
  const count = kind => {
    seen[kind] += 1;
    if (awaited && awaited.met()) awaited.resolve(true);
  };
  const sentinel = (keys, clicks, patience) => {
    const met = () => seen.keys >= keys && seen.clicks >= clicks;
    return met() || new Promise(resolve => {
      const timer = setTimeout(() => awaited.resolve(false), patience);
      awaited = {met, resolve: arrived => { clearTimeout(timer); awaited = null; resolve(arrived); }};
    });
  };
  const swallow = event => { event.stopImmediatePropagation(); event.preventDefault(); };

  const editing = new Set(['a', 'c', 'v', 'x', 'y', 'z', 'ArrowLeft', 'ArrowRight', 'ArrowUp', 'ArrowDown', 'Home', 'End',
    'Backspace', 'Delete', 'Insert']);
  const isShortcut = event => /^(F\d+|Browser\w+|Launch\w+|Alt|ContextMenu)$/.test(event.key) || event.altKey
    || (event.shiftKey && (event.key === 'Escape' || (event.ctrlKey && event.key === 'Delete')))  // tasks, browsing data
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

  const isHeldOut = () => {
    const read = [...document.querySelectorAll('#area textarea, #area td')].map(one => one.value || one.textContent);
    let hash = 2166136261;
    for (const character of [utterance(), ...read].join('\n')) {
      hash = Math.imul(hash ^ character.codePointAt(0), 16777619) >>> 0;
    }
    return (hash >>> 8) % 5 === 0;
  };

  // A fresh page gets no input before its first frame is shown.
  const painted = new Promise(resolve => new PerformanceObserver((list, observer) => {
    observer.disconnect();
    resolve();
  }).observe({type: 'paint', buffered: true}));

  const kept = [];  // images, for as long as the page

  window.dart = {
    // Have the images of the styles ready, which would otherwise come some frames after what they are part of.
    load: urls => Promise.all(urls.map(url => {
      const image = Object.assign(new Image(), {src: url});
      kept.push(image);
      return image.decode();
    })).then(() => true),

    painted: () => Promise.race([painted.then(() => true), new Promise(resolve => setTimeout(resolve, 1000, false))]),

    // Whether a sentinel of each kind has come, within `patience` ms.
    listens: patience => sentinel(1, 1, patience),

    // How many sentinels there were, once `sent` of each kind or no more come: some are lost while a page is loaded,
    // and a policy's keys and clicks may count as well.
    async settled(sent) {
      for (let before = null; seen.keys !== sent || seen.clicks !== sent;) {
        const now = `${seen.keys} ${seen.clicks}`;
        if (now === before) break;
        before = now;
        await new Promise(resolve => setTimeout(resolve, 100));
      }
      return seen;
    },

    // Start an episode once the page has seen so many sentinels. `heldOut` is null where all seeds share all instances;
    // else instances are drawn until one is of that side: what is asked decides, and what is to be read for it.
    async reset(seed, keys, clicks, heldOut) {
      const arrived = await sentinel(keys, clicks, 2000);
      if (document.activeElement) document.activeElement.blur();
      for (let attempt = 0; attempt < 200; attempt++) {
        // as for a number: the generator takes the strings 1 and 11 for the same
        Math.seedrandom(seed + '\0' + (attempt || ''));
        core.startEpisodeReal();
        if (heldOut === null || isHeldOut() === heldOut) break;
      }
      for (const input of document.querySelectorAll('input, textarea')) {
        input.autocomplete = 'off';
        input.spellcheck = false;
      }
      return {arrived, signal: signal(), instruction: utterance(), width: innerWidth, height: innerHeight,
        visible: !document.hidden};
    },

    // The state of the episode once the page has seen so many sentinels.
    async step(keys, clicks) {
      const arrived = await sentinel(keys, clicks, 2000);
      return {arrived, signal: signal(), done: WOB_DONE_GLOBAL, reward: WOB_RAW_REWARD_GLOBAL};
    },
  };
})();
