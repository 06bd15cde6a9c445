/**
 * Carries out a plan with nsqjs: `node nsqjs_driver.js PLAN` prints the report.
 *
 * The plan is described in ../plan.py, the report in ledger.py; both are the same for every driver.
 */
'use strict'

const {once} = require('events')
const {readFileSync} = require('fs')
const https = require('https')

const {Reader, Writer} = require('nsqjs')

const EVERY_BYTE = Buffer.from(Array.from({length: 256}, (_, value) => value))

/** The first backoff of nsqjs is a 35th of this: long enough to be one, short enough for a test. */
const MAX_BACKOFF_S = 1

/** What a close() sends has left by then; nsqjs does not say when. */
const CLOSE_MS = 20

const sleep = (ms) => new Promise((resolve) => setTimeout(resolve, ms))

function bodyOf(number) {
  return Buffer.concat([Buffer.from(`${number}:`), EVERY_BYTE.subarray(0, number % 257)])
}

/** The number of a message, or null when its body is not the one that was published. */
function numberOf(body) {
  const number = Number.parseInt(body.toString('latin1'), 10)
  return Number.isInteger(number) && body.equals(bodyOf(number)) ? number : null
}

/** What happened, and the report of it. */
class Ledger {
  constructor(plan) {
    this.firstFates = new Map([
      ...plan.requeued.map((number) => [number, 'requeue']),
      ...plan.abandoned.map((number) => [number, 'abandon']),
      ...plan.touched.map((number) => [number, 'touch']),
    ])
    this.publishedCount = 0
    this.attemptsSeen = new Map() // message number -> attempts in order of arrival
    this.spoiledCount = 0
    this.finishCount = 0
    this.unfinished = new Set(Array.from({length: plan.message_count}, (_, number) => number))
    this.touchCount = 0
    this.deferredAt = new Map() // message number -> ms, just before the DPUB was sent
    this.deferredForMs = []
    this.errors = []
  }

  get complete() {
    return this.unfinished.size === 0
  }

  /** Records an arrival and says what to do with it. */
  delivered(body, attempts) {
    const number = numberOf(body)
    if (number === null) {
      this.spoiledCount += 1
      return 'finish'
    }
    const seen = this.attemptsSeen.get(number) || []
    if (this.deferredAt.has(number) && seen.length === 0) {
      this.deferredForMs.push(performance.now() - this.deferredAt.get(number))
    }
    seen.push(attempts)
    this.attemptsSeen.set(number, seen)
    return (seen.length === 1 && this.firstFates.get(number)) || 'finish'
  }

  finished(body) {
    this.finishCount += 1
    this.unfinished.delete(numberOf(body))
  }

  report() {
    const seenOnceAsFirst = (seen) => seen.length === 1 && seen[0] === 1
    return {
      published: this.publishedCount,
      seen: this.attemptsSeen.size,
      spoiled: this.spoiledCount,
      retried: Object.fromEntries([...this.attemptsSeen].filter(([, seen]) => !seenOnceAsFirst(seen))),
      finishes: this.finishCount,
      unfinished: [...this.unfinished],
      touches: this.touchCount,
      earliest_deferred_ms: this.deferredForMs.length > 0 ? Math.min(...this.deferredForMs) : 0,
      errors: this.errors,
    }
  }
}

/** Resolves when nsqd has answered OK; `send` takes the callback that nsqjs calls with the answer. */
async function acknowledged(ledger, count, send) {
  await new Promise((resolve, reject) => send((error) => (error ? reject(error) : resolve())))
  ledger.publishedCount += count
}

async function publish(writer, plan, ledger) {
  const {topic} = plan
  for (const number of plan.deferred) {
    ledger.deferredAt.set(number, performance.now())
    await acknowledged(ledger, 1, (done) =>
      writer.deferPublish(topic, [bodyOf(number)], plan.defer_ms, done)
    )
  }
  const deferred = new Set(plan.deferred)
  const singles = Array.from({length: plan.single_count}, (_, number) => number)
    .filter((number) => !deferred.has(number))
    .map((number) => acknowledged(ledger, 1, (done) => writer.publish(topic, bodyOf(number), done)))
  await Promise.all(singles)
  for (let start = plan.single_count; start < plan.message_count; start += plan.batch_size) {
    const count = Math.min(plan.batch_size, plan.message_count - start)
    const bodies = Array.from({length: count}, (_, index) => bodyOf(start + index))
    await acknowledged(ledger, count, (done) => writer.publish(topic, bodies, done))
  }
}

/** Works on a message for longer than its timeout. */
async function hold(message, plan, ledger) {
  for (let heldMs = 0; heldMs < plan.hold_ms; heldMs += plan.touch_interval_ms) {
    await sleep(Math.min(plan.touch_interval_ms, plan.hold_ms - heldMs))
    message.touch()
    ledger.touchCount += 1
  }
  ledger.finished(message.body)
  message.finish()
}

function handle(message, plan, ledger) {
  switch (ledger.delivered(message.body, message.attempts)) {
    case 'requeue':
      return message.requeue(0)
    case 'abandon':
      return undefined
    case 'touch':
      return hold(message, plan, ledger)
    default:
      ledger.finished(message.body)
      return message.finish()
  }
}

/** How the Reader gets to know of nsqd. */
function whereabouts(plan) {
  if (!plan.lookupd_http_address) return {nsqdTCPAddresses: [plan.address]}
  const address = plan.lookupd_secret ? secretAddress(plan) : plan.lookupd_http_address
  return {lookupdHTTPAddresses: [address], lookupdPollInterval: plan.lookup_interval_s}
}

/** Where nsqlookupd is asked by HTTPS, with its secret. Which certificates to trust and to show is said to Node itself. */
function secretAddress(plan) {
  const {ca, cert, key} = connectionOptions(plan)
  Object.assign(https.globalAgent.options, {ca, cert, key})
  return `https://nsqjs:${encodeURIComponent(plan.lookupd_secret)}@${plan.lookupd_http_address}`
}

/** What Writer and Reader have in common. */
function connectionOptions(plan) {
  const options = {heartbeatInterval: plan.heartbeat_interval_ms / 1000}
  if (plan.authority_path) Object.assign(options, {tls: true, ca: readFileSync(plan.authority_path)})
  if (plan.certificate_path) {
    Object.assign(options, {cert: readFileSync(plan.certificate_path), key: readFileSync(plan.key_path)})
  }
  if (plan.compression) options[plan.compression] = true
  if (plan.auth_secret) options.authSecret = plan.auth_secret
  return options
}

async function run(plan, ledger, clients) {
  const [host, port] = plan.address.split(':')
  const writer = new Writer(host, Number(port), connectionOptions(plan))
  const reader = new Reader(plan.topic, plan.channel, {
    ...whereabouts(plan),
    maxInFlight: plan.max_in_flight,
    maxBackoffDuration: MAX_BACKOFF_S,
    messageTimeout: plan.msg_timeout_ms,
    ...connectionOptions(plan),
  })
  clients.push(reader, writer)
  for (const client of clients) {
    client.on('error', (error) => ledger.errors.push(String(error)))
  }
  reader.on('message', (message) => handle(message, plan, ledger))
  // A reader that asks nsqlookupd finds nothing until something has been published.
  const awaited = plan.lookupd_http_address ? [writer] : clients
  const ready = awaited.map((client) => new Promise((resolve) => client.once('ready', resolve)))
  writer.connect()
  reader.connect()
  await Promise.all(ready)
  await publish(writer, plan, ledger)
  while (!ledger.complete) await sleep(10)
  await sleep(plan.linger_ms)
}

async function main() {
  const plan = JSON.parse(process.argv[2])
  const ledger = new Ledger(plan)
  const clients = []
  const deadline = sleep(plan.deadline_ms).then(() => {
    ledger.errors.push('the deadline passed before every message was finished')
  })
  await Promise.race([run(plan, ledger, clients), deadline]).catch((error) => ledger.errors.push(String(error)))
  process.stdout.write(`${JSON.stringify(ledger.report())}\n`)
  await once(process.stdin.resume(), 'end')
  for (const client of clients) client.close()
  await sleep(CLOSE_MS)
  process.exit(0)
}

main()
