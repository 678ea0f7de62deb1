// What the bundled sites have in common: the state of this episode, and elements that are never made of markup.
// Opened as a file, a page takes its state from `window.SITE_STATE` and keeps it to itself.
'use strict'
let state = null
const byId = id => document.getElementById(id)

async function fetched() {
  if (window.SITE_STATE) return window.SITE_STATE
  return (await (await fetch('/state')).json()).stored_state
}

// Change the state, and show it once it is kept.
async function change(work) {
  const result = work(state)
  if (!window.SITE_STATE) {
    const body = JSON.stringify({ action: 'set_current', state })
    await fetch('/post', { method: 'POST', headers: { 'Content-Type': 'application/json' }, body })
  }
  renderInPlace()
  return result
}

// Show the state anew, and leave the keyboard where it was.
function renderInPlace() {
  const controls = () => [...document.querySelectorAll('input, select, textarea, button, a')]
  const before = controls(), at = before.indexOf(document.activeElement)
  render()
  const after = controls()
  if (at >= 0 && after.length === before.length && !after.includes(document.activeElement)) after[at].focus({ preventScroll: true })
}

function el(tag, fields = {}, ...children) {
  const made = document.createElement(tag)
  for (const [key, value] of Object.entries(fields)) {
    if (key === 'class') made.className = value
    else if (key.startsWith('on')) made.addEventListener(key.slice(2), value)
    else if (key in made) made[key] = value
    else made.setAttribute(key, value)
  }
  made.append(...children.filter(child => child !== null && child !== undefined && child !== false))
  return made
}

function toast(text) {
  byId('toast').textContent = text
  byId('toast').hidden = false
  clearTimeout(toast.timer)
  toast.timer = setTimeout(() => { byId('toast').hidden = true }, 2500)
}

// The next of keys such as "sent-3".
const nextId = (kind, of) => `${kind}-${Object.keys(of).filter(key => key.startsWith(kind + '-')).length + 1}`

async function begin() {
  state = await fetched()
  render()
  // another tab may have changed it meanwhile
  const look = async () => {
    const found = await fetched()
    if (document.hidden || JSON.stringify(found) === JSON.stringify(state)) return
    state = found
    renderInPlace()
  }
  window.addEventListener('focus', look)
  document.addEventListener('visibilitychange', look)
}
