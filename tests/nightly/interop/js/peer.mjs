// A peer of js-libp2p, told what to do by lines of JSON on its input; it answers each with a line. With the word "relay"
// it is a relay for others.
// Node 20 lacks Promise.withResolvers, which its libraries use: so they are imported after the stand-in.
import readline from 'node:readline'

Promise.withResolvers ??= function () {
  let resolve, reject
  const promise = new Promise((yes, no) => { resolve = yes; reject = no })
  return { promise, resolve, reject }
}
const { createLibp2p } = await import('libp2p')
const { tcp } = await import('@libp2p/tcp')
const { noise } = await import('@chainsafe/libp2p-noise')
const { yamux } = await import('@chainsafe/libp2p-yamux')
const { circuitRelayTransport, circuitRelayServer } = await import('@libp2p/circuit-relay-v2')
const { identify } = await import('@libp2p/identify')
const { ping } = await import('@libp2p/ping')
const { multiaddr } = await import('@multiformats/multiaddr')

const ECHO = '/odf-interop/echo/1'
const say = value => process.stdout.write(JSON.stringify(value) + '\n')
const room = stream => new Promise(resolve => stream.addEventListener('drain', resolve, { once: true }))

const node = await createLibp2p({
  addresses: { listen: ['/ip4/127.0.0.1/tcp/0'] },
  transports: [tcp(), circuitRelayTransport()],
  connectionEncrypters: [noise()],
  streamMuxers: [yamux()],
  connectionGater: { denyDialMultiaddr: () => false },
  services: {
    identify: identify(),
    ping: ping(),
    listeners: components => components.transportManager,
    ...(process.argv[2] === 'relay' ? { relay: circuitRelayServer() } : {})
  }
})
const known = new Map()
node.addEventListener('peer:identify', event => known.set(event.detail.peerId.toString(), event.detail))
await node.handle(ECHO, async stream => {
  for await (const part of stream) if (!stream.send(part)) await room(stream)
  await stream.close()
}, { runOnLimitedConnection: true })
say({ ready: node.getMultiaddrs().map(String) })

async function echo (address, size) {
  const connection = await node.dial(multiaddr(address))
  const stream = await connection.newStream(ECHO, { runOnLimitedConnection: true })
  const part = new Uint8Array(65536).map((_, at) => at & 255)
  let got = 0
  let wrong = 0
  const reading = (async () => {
    for await (const some of stream) {
      for (const byte of some.subarray()) if (byte !== (got++ & 255)) wrong++
    }
  })()
  for (let sent = 0; sent < size; sent += part.length) {
    if (!stream.send(part.subarray(0, size - sent))) await room(stream)
  }
  await stream.close()
  await reading
  return { got, wrong, limited: connection.limits != null }
}

// Reserves at a relay and listens there: addresses by which others reach this peer.
async function reserve (relay) {
  await node.services.listeners.listen([multiaddr(relay + '/p2p-circuit')])
  return { addresses: node.getMultiaddrs().map(String).filter(each => each.includes('/p2p-circuit')) }
}

const commands = {
  ping: async address => ({ ms: await node.services.ping.ping(multiaddr(address)) }),
  echo,
  reserve,
  identified: async peer => {
    const about = known.get(peer)
    return about ? { agent: about.agentVersion, protocols: about.protocols } : {}
  },
  muxers: async () => ({ muxers: node.getConnections().map(one => [one.encryption, one.multiplexer]) })
}
for await (const line of readline.createInterface({ input: process.stdin })) {
  const [command, ...rest] = JSON.parse(line)
  try {
    say(await commands[command](...rest))
  } catch (error) {
    say({ error: `${error?.name}: ${error?.message}` })
  }
}
await node.stop()
