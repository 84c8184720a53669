// A peer of go-libp2p, told what to do by lines of JSON on its input; it answers each with a line.
// With "relay" as its argument it is a public relay.
package main

import (
	"bufio"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"time"

	"github.com/libp2p/go-libp2p"
	"github.com/libp2p/go-libp2p/core/host"
	"github.com/libp2p/go-libp2p/core/network"
	"github.com/libp2p/go-libp2p/core/peer"
	"github.com/libp2p/go-libp2p/p2p/muxer/yamux"
	"github.com/libp2p/go-libp2p/p2p/protocol/circuitv2/client"
	"github.com/libp2p/go-libp2p/p2p/security/noise"
	"github.com/libp2p/go-libp2p/p2p/transport/tcp"
)

const echo = "/odf-interop/echo/1"

func say(value any) {
	text, _ := json.Marshal(value)
	fmt.Println(string(text))
}

func info(address string) (peer.AddrInfo, error) {
	found, err := peer.AddrInfoFromString(address)
	if err != nil {
		return peer.AddrInfo{}, err
	}
	return *found, nil
}

// Reserves at a relay, and tells the seconds until that ends.
func reserve(ctx context.Context, node host.Host, relay string) (any, error) {
	at, err := info(relay)
	if err != nil {
		return nil, err
	}
	if err := node.Connect(ctx, at); err != nil {
		return nil, err
	}
	made, err := client.Reserve(ctx, node, at)
	if err != nil {
		return nil, err
	}
	return map[string]any{
		"seconds":  time.Until(made.Expiration).Seconds(),
		"voucher":  made.Voucher != nil && made.Voucher.Peer == node.ID() && made.Voucher.Relay == at.ID,
		"bytes":    made.LimitData,
		"duration": made.LimitDuration.Seconds(),
	}, nil
}

// Sends bytes to a peer and reads the same, over whatever connection its address says.
func ask(ctx context.Context, node host.Host, address string, size int) (any, error) {
	at, err := info(address)
	if err != nil {
		return nil, err
	}
	ctx = network.WithAllowLimitedConn(ctx, "test")
	if err := node.Connect(ctx, at); err != nil {
		return nil, err
	}
	stream, err := node.NewStream(ctx, at.ID, echo)
	if err != nil {
		return nil, err
	}
	defer stream.Close()
	part := make([]byte, size)
	for at := range part {
		part[at] = byte(at)
	}
	failed := make(chan error, 1)
	go func() {
		_, err := stream.Write(part)
		if err == nil {
			err = stream.CloseWrite()
		}
		failed <- err
	}()
	came, err := io.ReadAll(stream)
	if err != nil {
		return nil, err
	}
	wrong := 0
	for at, each := range came {
		if each != byte(at) {
			wrong++
		}
	}
	limited := stream.Conn().Stat().Limited
	return map[string]any{"got": len(came), "wrong": wrong, "limited": limited}, <-failed
}

func main() {
	options := []libp2p.Option{
		libp2p.ListenAddrStrings("/ip4/127.0.0.1/tcp/0"),
		libp2p.Transport(tcp.NewTCPTransport),
		libp2p.Security(noise.ID, noise.New),
		libp2p.Muxer("/yamux/1.0.0", yamux.DefaultTransport),
	}
	if len(os.Args) > 1 && os.Args[1] == "relay" {
		options = append(options, libp2p.ForceReachabilityPublic(), libp2p.EnableRelayService())
	}
	node, err := libp2p.New(options...)
	if err != nil {
		say(map[string]string{"error": err.Error()})
		return
	}
	defer node.Close()
	node.SetStreamHandler(echo, func(stream network.Stream) {
		io.Copy(stream, stream)
		stream.Close()
	})
	ready := []string{}
	for _, each := range node.Addrs() {
		ready = append(ready, fmt.Sprintf("%s/p2p/%s", each, node.ID()))
	}
	say(map[string]any{"ready": ready})
	lines := bufio.NewScanner(os.Stdin)
	for lines.Scan() {
		ctx, cancel := context.WithTimeout(context.Background(), 30*time.Second)
		var words []any
		var said any
		err := json.Unmarshal(lines.Bytes(), &words)
		if err == nil {
			switch words[0] {
			case "reserve":
				said, err = reserve(ctx, node, words[1].(string))
			case "echo":
				said, err = ask(ctx, node, words[1].(string), int(words[2].(float64)))
			}
		}
		cancel()
		if err != nil {
			said = map[string]string{"error": err.Error()}
		}
		say(said)
	}
}
