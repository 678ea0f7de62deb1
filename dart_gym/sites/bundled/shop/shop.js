'use strict'
const DELIVERY = { standard: ['Standard (3 to 5 days)', 390], express: ['Express (next day)', 890], pickup: ['Pick up in the shop', 0] }
const SHAPES = {
  Kitchen: 'M95 38a36 36 0 1 0 .1 0zM95 54a20 20 0 1 0 .1 0zM44 34v26M36 34v20q0 8 8 8t8-8V34M44 62v50M146 112V34q14 8 14 44h-14',
  Office: 'M62 34h66v80H62zM76 52h38M76 68h38M76 84h24',
  Home: 'M56 76l39-36 39 36M66 68v44h58V68M86 112V88h18v24',
  Garden: 'M68 76h54l-8 40H76zM95 76V46M95 58c-20 0-26-12-26-24 16 0 26 8 26 24M95 50c0-14 10-20 24-20 0 14-8 20-24 20'
}
let view = { name: 'home' }, category = 'All', order = 'name'

const euros = cents => `${Math.floor(cents / 100)}.${String(cents % 100).padStart(2, '0')} €`
const go = (name, more = {}) => { view = { name, ...more }; render(); byId('page').scrollTop = 0 }

function picture(id) {
  const { category, hue } = state.products[id], ns = 'http://www.w3.org/2000/svg'
  const svg = document.createElementNS(ns, 'svg'), path = document.createElementNS(ns, 'path')
  svg.setAttribute('viewBox', '0 0 190 150')
  svg.setAttribute('preserveAspectRatio', 'xMidYMid meet')
  svg.style.background = `hsl(${hue} 45% 88%)`
  for (const [key, value] of Object.entries({ d: SHAPES[category], fill: `hsl(${hue} 50% 70%)`, stroke: `hsl(${hue} 45% 35%)`, 'stroke-width': 4, 'stroke-linejoin': 'round' })) path.setAttribute(key, value)
  svg.append(path)
  return svg
}

function render() {
  const count = Object.values(state.cart).reduce((sum, item) => sum + item.count, 0)
  byId('cart').textContent = `Cart (${count})`
  const [title, ...parts] = { home, product, cart, orders, wishes, done }[view.name]()
  document.title = `${title} - Shop`
  byId('page').replaceChildren(...parts)
}

function cards(ids) {
  return el('div', { class: 'grid' }, ...ids.map(id => {
    const item = state.products[id]
    return el('div', { class: 'card', onclick: () => go('product', { id }) }, picture(id),
      el('div', {}, el('p', {}, item.title), el('p', { class: 'quiet' }, `${item.rating} of 5 stars`), el('p', { class: 'price' }, euros(item.price))))
  }))
}

function home() {
  const words = byId('search').value.toLowerCase()
  const ids = Object.keys(state.products).filter(id => (category === 'All' || state.products[id].category === category) &&
    state.products[id].title.toLowerCase().includes(words))
  const keys = { name: item => item.title, price: item => Number(item.price), rating: item => -item.rating }
  ids.sort((a, b) => { const [x, y] = [a, b].map(id => keys[order](state.products[id])); return x < y ? -1 : x > y ? 1 : a < b ? -1 : 1 })
  const tabs = ['All', ...Object.keys(SHAPES)].map(name => el('button', { class: name === category ? 'here' : '', onclick: () => { category = name; render() } }, name))
  const sort = el('select', { 'aria-label': 'Sort', onchange: event => { order = event.target.value; render() } },
    ...[['name', 'By name'], ['price', 'Cheapest first'], ['rating', 'Best rated first']].map(([value, label]) => el('option', { value, selected: value === order }, label)))
  return ['Products', el('div', { class: 'bar' }, ...tabs, sort), ids.length ? cards(ids) : el('p', { class: 'empty' }, 'No product has this name.')]
}

function product() {
  const item = state.products[view.id]
  const choice = el('select', {}, ...item.options.map(value => el('option', { value }, value)))
  const count = el('input', { type: 'number', min: 1, max: 20, value: 1 })
  const add = async () => {
    const number = Number(count.value), option = choice.value
    if (!Number.isInteger(number) || number < 1 || number > 20) return toast('From 1 to 20 pieces can be ordered.')
    await change(s => {
      const key = `${view.id}-${option}`
      s.cart[key] = { product: view.id, option, count: number + (s.cart[key] ? s.cart[key].count : 0) }
    })
    toast('It is in the cart.')
  }
  const wish = () => change(s => { if (s.wishes[view.id]) delete s.wishes[view.id]; else s.wishes[view.id] = true })
  return [item.title, el('div', { class: 'product' }, picture(view.id), el('div', {},
    el('h1', {}, item.title), el('p', { class: 'price' }, euros(item.price)), el('p', {}, item.text),
    el('p', { class: 'quiet' }, `${item.rating} of 5 stars, ${item.stock} in stock`),
    el('div', { class: 'line' }, el('span', {}, 'Kind'), choice), el('div', { class: 'line' }, el('span', {}, 'Pieces'), count),
    el('div', { class: 'line' }, el('button', { class: 'primary', onclick: add }, 'Add to cart'),
      el('button', { onclick: wish }, state.wishes[view.id] ? 'Take off the wish list' : 'Put on the wish list'))))]
}

function totals(items, delivery, voucher) {
  const goods = items.reduce((sum, item) => sum + item.count * state.products[item.product].price, 0)
  const off = Math.floor(goods * (state.vouchers[voucher] || 0) / 100), post = DELIVERY[delivery][1]
  return { goods, off, post, all: goods - off + post }
}

const table = items => el('table', {}, el('tr', {}, ...['Product', 'Kind', 'Pieces', 'Price', ''].map(name => el('th', {}, name))), ...items)

function cart() {
  const entries = Object.entries(state.cart).sort()
  if (!entries.length) return ['Cart', el('h1', {}, 'Cart'), el('p', { class: 'empty' }, 'The cart is empty.')]
  const rows = entries.map(([key, item]) => el('tr', {},
    el('td', {}, state.products[item.product].title), el('td', {}, item.option),
    el('td', {}, el('input', { type: 'number', min: 1, max: 20, value: item.count, onchange: event => {
      const count = Number(event.target.value)
      if (Number.isInteger(count) && count >= 1 && count <= 20) change(s => { s.cart[key].count = count })
      else render()
    } })),
    el('td', {}, euros(item.count * state.products[item.product].price)),
    el('td', {}, el('button', { onclick: () => change(s => { delete s.cart[key] }) }, 'Remove'))))
  const { delivery = 'standard', voucher = '' } = state.ui, sum = totals(entries.map(([, item]) => item), delivery, voucher)
  const field = el('input', { value: voucher, placeholder: 'Voucher', spellcheck: false })
  const redeem = () => {
    const code = field.value.trim().toUpperCase()
    if (!state.vouchers[code]) return toast('There is no such voucher.')
    change(s => { s.ui.voucher = code })
  }
  const place = () => change(s => {
    s.orders[nextId('order', s.orders)] = { items: s.cart, delivery, voucher }
    s.cart = {}
    s.ui.voucher = ''
  }).then(() => go('done'))
  const line = (name, value, all) => el('div', { class: 'sum' + (all ? ' all' : '') }, el('span', {}, name), el('span', {}, value))
  return ['Cart', el('h1', {}, 'Cart'), table(rows), el('div', { class: 'checkout' },
    el('div', { class: 'box' }, el('h2', {}, 'Delivery'), ...Object.entries(DELIVERY).map(([name, [label, price]]) => el('label', {},
      el('input', { type: 'radio', name: 'delivery', checked: name === delivery, onchange: () => change(s => { s.ui.delivery = name }) }),
      label, el('span', { class: 'quiet' }, price ? euros(price) : 'free')))),
    el('div', { class: 'box' },
      el('div', { class: 'line' }, field, el('button', { onclick: redeem }, 'Redeem')),
      line('Goods', euros(sum.goods)), sum.off ? line(`Voucher ${voucher}`, `- ${euros(sum.off)}`) : null, line('Delivery', euros(sum.post)),
      line('Total', euros(sum.all), true), el('button', { class: 'primary', onclick: place }, 'Place the order')))]
}

function orders() {
  const found = Object.entries(state.orders)
  const parts = found.map(([id, order]) => el('div', { class: 'box' }, el('h2', {}, `${id}: ${euros(totals(Object.values(order.items), order.delivery, order.voucher).all)}`),
    ...Object.values(order.items).map(item => el('p', {}, `${item.count} x ${state.products[item.product].title}, ${item.option}`)),
    el('p', { class: 'quiet' }, DELIVERY[order.delivery][0])))
  return ['Orders', el('h1', {}, 'Orders'), ...(parts.length ? parts : [el('p', { class: 'empty' }, 'Nothing was ordered yet.')])]
}

function wishes() {
  const ids = Object.keys(state.wishes).sort()
  return ['Wish list', el('h1', {}, 'Wish list'), ids.length ? cards(ids) : el('p', { class: 'empty' }, 'The wish list is empty.')]
}

const done = () => ['Thank you', el('h1', {}, 'Thank you'), el('p', {}, 'We have received your order.')]

byId('search').oninput = () => { category = 'All'; go('home') }
for (const name of ['home', 'wishes', 'orders', 'cart']) byId(name).onclick = () => go(name)
begin()
