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
  const byId = id => document.getElementById(id);
  // The next action that brings every input to its text, and then the submission.
  const fill = (wanted, submit) => {
    const wrong = wanted.find(([input, text]) => input.value !== text);
    return wrong ? typeInto(...wrong) : click(submit);
  };
  const quotes = () => [...query().matchAll(/"([^"]*)"/g)].map(match => match[1]);
  const movie = () => {
    const [, genre, director, year] = /^Search for (.*) movies directed by (.*) from year (\d+)\.$/.exec(query());
    const rows = all('#area input').map(input => [input, input.closest('p, .row, tr, .field, .ui-entry').textContent]);
    const wanted = rows.map(([input, label]) => [input, /genre/i.test(label) ? genre : /direct/i.test(label) ? director : year]);
    return fill(wanted, all('#area button, #area .final, #area .ui-submit').pop());
  };
  let copied = null;
  document.addEventListener('copy', () => { copied = document.activeElement.value; });
  const copyPaste = () => {
    const from = byId('to-copy'), to = byId('answer-input');
    if (to.value === from.value) return click(byId('subbtn'));
    if (copied === from.value) return document.activeElement === to ? {kind: 'press', keys: ['ctrl', 'v']} : click(to);
    if (document.activeElement !== from) return click(from);
    return {kind: 'press', keys: ['ctrl', from.selectionEnd - from.selectionStart === from.value.length ? 'c' : 'a']};
  };
  const searchEngine = () => {
    const number = Number(/(\d+)(st|nd|rd|th) search result/.exec(query())[1]), page = Math.ceil(number / 3);
    const links = all('#page-content a');
    if (byId('search-text').value !== quotes()[0]) return typeInto(byId('search-text'), quotes()[0]);
    if (!links.length) return click(byId('search'));
    if (Number(document.querySelector('.pagination .active').textContent) !== page) {
      return click(all('.pagination .page-link, .pagination a').find(link => link.textContent === String(page)));
    }
    return click(links[(number - 1) % 3]);
  };
  const readTable = () => fill(['1', '2'].map(number => [byId('tt' + number), all('#tab tr')
    .find(row => row.children[0].textContent === byId('ll' + number).dataset.key).children[1].textContent]), byId('subbtn'));
  const formSequence = () => {
    const [, radio, number, box] = /Check the (\d)\w+ radio button and enter the number "(.*)" into the (\d)/.exec(query());
    const option = document.querySelector(`#area input[type=radio][value="${radio}"]`);
    return option.checked ? fill([[byId('input-' + box), number]], byId('subbtn')) : click(option);
  };
  const spin = () => {
    const wanted = Number(/^Select (-?\d+) /.exec(query())[1]), now = Number(byId('spinner').value);
    return click(now === wanted ? byId('subbtn') : document.querySelector(now < wanted ? '.ui-spinner-up' : '.ui-spinner-down'));
  };
  const enterText = () => document.getElementById('tt').value === quoted()
    ? click(document.getElementById('subbtn')) : typeInto(document.getElementById('tt'), quoted());
  const select = (wanted, input) => {
    const wrong = all('#area label').find(label => label.querySelector(input).checked !== wanted.includes(label.textContent));
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
    'click-checkboxes-large': () => select(listed().split(', '), 'input'),
    'login-user': () => fill([[byId('username'), quotes()[0]], [byId('password'), quotes()[1]]], byId('subbtn')),
    'enter-password': () => fill(['password', 'verify'].map(id => [byId(id), quotes()[0]]), byId('subbtn')),
    'multi-layouts': movie,
    'multi-orderings': movie,
    'copy-paste': copyPaste,
    'search-engine': searchEngine,
    'read-table-2': readTable,
    'form-sequence-2': formSequence,
    'click-option': () => select([listed()], 'input'),
    'use-spinner': spin,
    'click-widget': () => click(document.querySelector(`[data-type="${quoted()}"]`)),
    'click-color': () => click(document.querySelector(`#area [data-color="${/the (\w+) colored/.exec(core.getUtterance())[1]}"]`)),
  };

  dart.oracle = page => oracles[page]();
})();
