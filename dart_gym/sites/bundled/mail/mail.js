'use strict'
const FOLDERS = { inbox: 'Inbox', starred: 'Starred', archive: 'Archive', sent: 'Sent', trash: 'Trash' }
let folder = 'inbox', open = null

const inFolder = (message, name) => (name === 'starred' ? message.starred && message.folder !== 'trash' : message.folder === name)
const isRead = id => Boolean((state.ui.read || {})[id]) || state.messages[id].folder === 'sent'

function shown() {
  const words = byId('search').value.toLowerCase()
  const text = message => [message.from, message.to, message.subject, message.body].join(' ').toLowerCase()
  const found = Object.entries(state.messages).filter(([, message]) =>
    words ? message.folder !== 'trash' && text(message).includes(words) : inFolder(message, folder))
  return found.sort(([a, one], [b, two]) => two.time - one.time || (a < b ? -1 : 1))
}

const dateOf = message => message.time > 1e6 ? 'now' : `${(message.time % 28) + 1} ${['Sep', 'Oct', 'Nov'][Math.floor(message.time / 28) % 3]}`

function render() {
  byId('me').textContent = state.me.address
  byId('folders').replaceChildren(...Object.entries(FOLDERS).map(([name, label]) => {
    const count = Object.keys(state.messages).filter(id => state.messages[id].folder === name && !isRead(id)).length
    const pick = () => { folder = name; open = null; byId('search').value = ''; render() }
    return el('button', { class: 'folder' + (name === folder ? ' here' : ''), onclick: pick }, label,
      name === 'inbox' && count ? el('span', {}, String(count)) : null)
  }))
  const rows = shown().map(([id, message]) => el('div',
    { class: 'row' + (id === open ? ' here' : '') + (isRead(id) ? '' : ' new'), onclick: () => read(id) },
    el('div', {}, el('b', {}, message.folder === 'sent' ? `To: ${message.to}` : message.from),
      el('time', {}, message.starred ? el('span', { class: 'star' }, '★ ') : '', dateOf(message))),
    el('p', {}, message.subject)))
  byId('list').replaceChildren(...(rows.length ? rows : [el('p', { class: 'empty' }, 'There are no messages here.')]))
  byId('reader').replaceChildren(...(open && state.messages[open] ? reading(open) : [el('p', { class: 'empty' }, 'Choose a message to read it.')]))
  document.title = (open && state.messages[open] ? state.messages[open].subject : FOLDERS[folder]) + ' - Mail'
}

function reading(id) {
  const message = state.messages[id]
  const act = (label, work, said) => el('button', { onclick: async () => { await change(work); if (said) toast(said) } }, label)
  const put = (where, said) => act(said.split(' ')[0], s => { s.messages[id].folder = where; open = null }, said.slice(said.indexOf(' ') + 1))
  return [
    el('div', { class: 'tools' },
      el('button', { onclick: () => write('Reply', message.address, `Re: ${message.subject}`, '') }, 'Reply'),
      el('button', { onclick: () => write('Forward', '', `Fwd: ${message.subject}`, message.body) }, 'Forward'),
      message.folder !== 'archive' && put('archive', 'Archive The message was archived.'),
      message.folder !== 'inbox' && message.folder !== 'sent' && put('inbox', 'Restore The message is in the inbox again.'),
      message.folder !== 'trash' && put('trash', 'Delete The message is in the trash.'),
      act(message.starred ? 'Unstar' : 'Star', s => { s.messages[id].starred = !message.starred })),
    el('h1', {}, message.subject),
    el('div', { class: 'meta' }, el('span', {}, `${message.from} <${message.address}> to ${message.to}`), el('span', {}, dateOf(message))),
    el('pre', {}, message.body),
    message.file && el('div', { class: 'file' }, el('b', {}, message.file.name),
      el('a', { class: 'button', href: URL.createObjectURL(new Blob([message.file.text], { type: 'application/octet-stream' })),
        download: message.file.name }, 'Download'))
  ].filter(Boolean)
}

async function read(id) {
  open = id
  await change(s => { s.ui.read = { ...s.ui.read, [id]: true } })
}

function write(kind, to, subject, body) {
  const form = byId('editor')
  byId('kind').textContent = kind
  Object.assign(form.elements.to, { value: to })
  form.elements.subject.value = subject
  form.elements.body.value = body
  form.hidden = false
  ;(to ? form.elements.body : form.elements.to).focus()
}

byId('search').oninput = () => { open = null; render() }
byId('compose').onclick = () => write('New message', '', '', '')
byId('discard').onclick = () => { byId('editor').hidden = true }
byId('editor').onsubmit = async event => {
  event.preventDefault()
  const fields = event.target.elements
  if (!/^\S+@\S+$/.test(fields.to.value.trim())) return toast('An address is needed, such as name@example.test.')
  await change(s => {
    const sent = Object.values(s.messages).filter(message => message.folder === 'sent').length
    s.messages[nextId('sent', s.messages)] = { from: s.me.name, address: s.me.address, to: fields.to.value.trim(),
      subject: fields.subject.value.trim(), body: fields.body.value.trim(), folder: 'sent', time: 2e6 + sent }
  })
  byId('editor').hidden = true
  toast('The message was sent.')
}
begin()
