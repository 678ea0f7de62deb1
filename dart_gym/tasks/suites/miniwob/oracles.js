// The next action of a perfect user of each page, read off its document: what `dart.oracle(page)` returns is an action
// as `dart_gym.core.actions.action_from_dict` takes it. Coordinates are the point of the target that is nearest to its
// middle, not covered by anything, and two pixels from the edge where that is possible.
(() => {
  const query = () => document.getElementById('query').textContent.replace(/\s+/g, ' ').trim();
  const quoted = () => /"(.*)"/.exec(query())[1];
  const all = selector => [...document.querySelectorAll(selector)];
  const shown = element => element.getClientRects().length > 0;

  const hits = (element, x, y) => {
    const top = document.elementFromPoint(x, y);
    return top !== null && (top === element || element.contains(top));
  };
  const roomy = (element, x, y) => hits(element, x - 2, y) && hits(element, x + 2, y) && hits(element, x, y - 2)
    && hits(element, x, y + 2);
  const point = element => {
    const points = [];
    for (const rect of element.getClientRects()) {
      const cx = (rect.left + rect.right) / 2, cy = (rect.top + rect.bottom) / 2;
      for (let y = Math.ceil(rect.top); y < rect.bottom; y++) {
        for (let x = Math.ceil(rect.left); x < rect.right; x++) points.push({x, y, distance: Math.hypot(x - cx, y - cy)});
      }
    }
    points.sort((one, other) => one.distance - other.distance);
    const found = points.find(({x, y}) => hits(element, x, y) && roomy(element, x, y))
      || points.find(({x, y}) => hits(element, x, y));
    if (!found) throw new Error('the target cannot be clicked: ' + element.outerHTML);
    return found;
  };

  const click = element => { const {x, y} = point(element); return {kind: 'click', x, y}; };
  const byText = (selector, text) => click(all(selector).find(element => shown(element) && element.innerHTML === text));
  const typeInto = (input, text) => {
    if (document.activeElement !== input) return click(input);
    if (input.value === '') return {kind: 'type', text};
    return {kind: 'press', keys: input.selectionEnd - input.selectionStart === input.value.length ? ['delete'] : ['ctrl', 'a']};
  };
  const enterText = () => document.getElementById('tt').value === quoted()
    ? click(document.getElementById('subbtn')) : typeInto(document.getElementById('tt'), quoted());
  const select = (wanted, input) => {
    const wrong = all('#boxes label').find(label => label.querySelector(input).checked !== wanted.includes(label.textContent));
    return click(wrong ? wrong.querySelector(input) : document.getElementById('subbtn'));
  };
  const listed = () => /^Select (.*) and click Submit\.$/.exec(query())[1];
  const link = () => {
    const links = all('#area .alink').filter(element => element.innerHTML === quoted());
    const visible = links.find(shown);
    return click(visible || links[0].closest('.ui-accordion-content').previousElementSibling);
  };

  const oracles = {
    'click-test': () => click(document.getElementById('subbtn')),
    'click-test-2': () => click(document.getElementById('subbtn')),
    'click-dialog': () => click(document.querySelector('.ui-dialog-titlebar button')),
    'click-dialog-2': () => quoted() === 'x' ? click(document.querySelector('.ui-dialog-titlebar button'))
      : byText('.ui-dialog-buttonset button', quoted()),
    'click-tab': () => byText('#area ul a', /Tab #\d/.exec(query())[0]),
    'focus-text': () => click(document.getElementById('tt')),
    'focus-text-2': () => click(document.getElementById('tt' + /the (\d)/.exec(query())[1])),
    'click-button': () => byText('#area button', quoted()),
    'click-button-sequence': () => click(document.getElementById(EXPECTED_SEQUENCE[buttonsPushed.length])),
    'click-collapsible': () => click(all('.ui-accordion-content').some(shown) ? document.getElementById('subbtn')
      : document.querySelector('#area h3')),
    'click-collapsible-2': link,
    'click-link': link,
    'grid-coordinate': () => click(document.getElementById(/\(.*\)/.exec(query())[0])),
    'enter-text': enterText,
    'enter-text-dynamic': enterText,
    'click-checkboxes': () => select(listed() === 'nothing' ? [] : listed().split(', '), 'input'),
    'click-option': () => select([listed()], 'input'),
    'click-widget': () => click(document.querySelector(`[data-type="${quoted()}"]`)),
    'click-color': () => click(document.querySelector(`#area [data-color="${/the (\w+) colored/.exec(core.getUtterance())[1]}"]`)),
  };

  dart.oracle = page => oracles[page]();
})();
