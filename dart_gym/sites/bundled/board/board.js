'use strict'
const COLUMNS = { todo: 'To do', doing: 'In progress', review: 'Review', done: 'Done' }
const LABELS = { none: 'No label', bug: 'Bug', feature: 'Feature', docs: 'Docs' }
let person = '', open = null

const options = (of, chosen) => Object.entries(of).map(([value, label]) => el('option', { value, selected: value === chosen }, label))
const people = first => ({ '': first, ...state.people })
const picker = (of, chosen, field) => el('select', { name: field, onchange: event => open !== 'new' && change(s => { s.cards[open][field] = event.target.value }) }, ...options(of, chosen))

function render() {
  byId('name').textContent = state.name
  byId('person').replaceChildren(...options(people('Everybody'), person))
  const words = byId('search').value.toLowerCase()
  const cards = Object.entries(state.cards).filter(([, card]) => (!person || card.person === person) && card.title.toLowerCase().includes(words))
  cards.sort(([a, one], [b, two]) => one.title < two.title ? -1 : one.title > two.title ? 1 : a < b ? -1 : 1)
  byId('columns').replaceChildren(...Object.entries(COLUMNS).map(([name, label]) => {
    const here = cards.filter(([, card]) => card.column === name)
    const column = el('section', { class: 'column' }, el('h2', {}, label, el('span', {}, String(here.length))), ...here.map(tile))
    column.ondragover = event => { event.preventDefault(); column.classList.add('over') }
    column.ondragleave = () => column.classList.remove('over')
    column.ondrop = event => { event.preventDefault(); const id = event.dataTransfer.getData('text'); if (state.cards[id]) change(s => { s.cards[id].column = name }) }
    return column
  }))
  byId('dialog').hidden = !open
  if (open) byId('dialog').replaceChildren(open === 'new' ? editor() : details(open))
  document.title = (open && open !== 'new' ? state.cards[open].title : open ? 'New card' : state.name) + ' - Board'
}

const said = count => (count ? `${count} comment${count > 1 ? 's' : ''}` : '')

function tile([id, card]) {
  const items = Object.values(card.checklist), made = el('div', { class: 'card', draggable: true, onclick: () => { open = id; render(); byId('dialog').querySelector('select').focus() } },
    el('span', { class: `label ${card.label}` }, LABELS[card.label]), el('p', {}, card.title),
    el('div', { class: 'foot' }, items.length ? `${items.filter(item => item.done).length} of ${items.length} done` : '',
      said(Object.keys(card.comments).length),
      card.person ? el('span', { class: 'face' }, state.people[card.person]) : ''))
  made.ondragstart = event => event.dataTransfer.setData('text', id)
  return made
}

const closing = label => el('button', { type: 'button', onclick: () => { open = null; render() } }, label)

function details(id) {
  const card = state.cards[id], words = el('input', { placeholder: 'Write a comment', spellcheck: false, autocomplete: 'off' })
  const say = event => {
    event.preventDefault()
    if (words.value.trim()) change(s => { s.cards[id].comments[nextId('comment', s.cards[id].comments)] = { by: s.me, text: words.value.trim() } })
  }
  const comment = el('form', { onsubmit: say }, words, el('button', {}, 'Comment'))
  comment.style.gridTemplateColumns = '1fr auto'
  return el('div', {}, el('h1', {}, card.title), el('div', { class: 'fields' },
    el('span', {}, 'Column'), picker(COLUMNS, card.column, 'column'), el('span', {}, 'Person'), picker(people('Nobody'), card.person, 'person'),
    el('span', {}, 'Label'), picker(LABELS, card.label, 'label'),
    ...(card.text ? [el('span', {}, 'Text'), el('div', {}, card.text)] : []),
    ...(Object.keys(card.checklist).length ? [el('span', {}, 'Checklist'), el('ul', {}, ...Object.entries(card.checklist).map(([key, item]) => el('li', {},
      el('label', {}, el('input', { type: 'checkbox', checked: item.done, onchange: event => change(s => { s.cards[id].checklist[key].done = event.target.checked }) }), item.text))))] : []),
    el('span', {}, 'Comments'), el('div', {}, ...Object.values(card.comments).map(one => el('p', { class: 'comment' }, el('b', {}, `${state.people[one.by]}: `), one.text)), comment),
    el('div', { class: 'end' }, el('button', { onclick: () => { open = null; change(s => { delete s.cards[id] }) } }, 'Delete card'), closing('Close'))))
}

function editor() {
  const title = el('input', { name: 'title', spellcheck: false, autocomplete: 'off' }), text = el('textarea', { name: 'text', spellcheck: false })
  const make = async event => {
    event.preventDefault()
    const fields = event.target.elements
    if (!title.value.trim()) return toast('A card needs a title.')
    open = null
    await change(s => {
      s.cards[nextId('new', s.cards)] = { title: title.value.trim(), text: text.value.trim(), column: fields.column.value, person: fields.person.value,
        label: fields.label.value, checklist: {}, comments: {} }
    })
  }
  setTimeout(() => title.focus())
  return el('div', {}, el('h1', {}, 'New card'), el('form', { onsubmit: make }, el('span', {}, 'Title'), title, el('span', {}, 'Column'), picker(COLUMNS, 'todo', 'column'),
    el('span', {}, 'Person'), picker(people('Nobody'), '', 'person'), el('span', {}, 'Label'), picker(LABELS, 'none', 'label'), el('span', {}, 'Text'), text,
    el('div', { class: 'end' }, closing('Cancel'), el('button', { class: 'primary' }, 'Add card'))))
}

byId('search').oninput = render
byId('person').onchange = event => { person = event.target.value; render() }
byId('add').onclick = () => { open = 'new'; render() }
begin()
