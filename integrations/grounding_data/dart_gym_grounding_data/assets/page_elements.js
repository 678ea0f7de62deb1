// Elements of a page that can be clicked or typed into: [{role, name, box, on, number}], boxes in pixels of the window,
// each one hit in its middle (document.elementFromPoint), so none is covered.
(() => {
  const wanted = 'a[href],button,input:not([type=hidden]),select,textarea,summary,[role=button],[role=link],[role=tab],' +
    '[role=checkbox],[role=menuitem],[onclick],[tabindex]:not([tabindex="-1"])';
  const roles = {A: 'link', BUTTON: 'push-button', SELECT: 'combo-box', TEXTAREA: 'entry', SUMMARY: 'toggle-button'};
  const kinds = {checkbox: 'check-box', radio: 'radio-button', submit: 'push-button', button: 'push-button',
    reset: 'push-button', image: 'push-button', password: 'password-text', range: 'slider'};
  const label = e => e.getAttribute('aria-label') || (e.labels && e.labels.length ? e.labels[0].innerText : '') ||
    (['submit', 'button', 'reset'].includes(e.type) ? e.value : '') || (e.tagName === 'SELECT' ? '' : e.innerText) ||
    e.placeholder || e.title || e.alt || (e.tagName === 'INPUT' ? e.name : '') || '';
  const found = [], same = {};
  for (const e of document.querySelectorAll(wanted)) {
    const r = e.getBoundingClientRect();
    const box = [Math.max(0, r.left), Math.max(0, r.top), Math.min(innerWidth, r.right), Math.min(innerHeight, r.bottom)];
    if (box[2] - box[0] < 6 || box[3] - box[1] < 6) continue;
    const hit = document.elementFromPoint((box[0] + box[2]) / 2, (box[1] + box[3]) / 2);
    if (!hit || !(e === hit || e.contains(hit))) continue;
    const role = e.tagName === 'INPUT' ? kinds[e.type] || 'entry' : roles[e.tagName] || 'push-button';
    const name = label(e).replace(/\s+/g, ' ').trim().slice(0, 120), kind = role + '|' + name.replace(/[0-9]+/g, '#');
    same[kind] = (same[kind] ?? -1) + 1;
    found.push({role, name, box, on: !e.disabled, number: same[kind]});
    if (found.length === 2000) break;
  }
  return {elements: found, title: document.title, url: location.href};
})()
