// A log of the C2SP ecosystem that grows and asks a witness for each size: log.go URL ORIGIN SEED WITNESS-VKEY
// It says the sizes whose cosignatures torchwood verifies, and what the witness answers to a tree of another history.
package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/hex"
	"fmt"
	"io"
	"net/http"
	"os"
	"strings"

	"filippo.io/torchwood"
	"golang.org/x/mod/sumdb/note"
	"golang.org/x/mod/sumdb/tlog"
)

func must[T any](value T, err error) T {
	if err != nil {
		panic(err)
	}
	return value
}

type tree struct {
	hashes []tlog.Hash
	size   int64
}

func (t *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	found := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		found[i] = t.hashes[index]
	}
	return found, nil
}

func (t *tree) grow(size int64, mark byte) {
	for ; t.size < size; t.size++ {
		leaf := bytes.Repeat([]byte{byte(t.size) ^ mark}, 32)
		t.hashes = append(t.hashes, must(tlog.StoredHashes(t.size, leaf, t))...)
	}
}

func main() {
	url, origin, seed := os.Args[1], os.Args[2], must(hex.DecodeString(os.Args[3]))
	key := ed25519.NewKeyFromSeed(seed)
	vkey := must(note.NewEd25519VerifierKey(origin, key.Public().(ed25519.PublicKey)))
	private := base64.StdEncoding.EncodeToString(append([]byte{1}, seed...))
	signer := must(note.NewSigner("PRIVATE+KEY+" + origin + "+" + strings.Split(vkey, "+")[1] + "+" + private))
	witness := must(torchwood.NewCosignatureVerifier(os.Args[4]))

	submit := func(t *tree, old int64) (int, []byte, []byte) {
		text := torchwood.Checkpoint{Origin: origin, Tree: tlog.Tree{N: t.size, Hash: must(tlog.TreeHash(t.size, t))}}.String()
		signed := must(note.Sign(&note.Note{Text: text}, signer))
		var body strings.Builder
		fmt.Fprintf(&body, "old %d\n", old)
		if old > 0 {
			for _, hash := range must(tlog.ProveTree(t.size, old, t)) {
				fmt.Fprintln(&body, hash)
			}
		}
		fmt.Fprintf(&body, "\n%s", signed)
		answer := must(http.Post(url+"/add-checkpoint", "text/plain", strings.NewReader(body.String())))
		defer answer.Body.Close()
		return answer.StatusCode, must(io.ReadAll(answer.Body)), signed
	}
	ours, other := &tree{}, &tree{}
	var old int64
	for _, size := range []int64{1, 3, 7, 12} {
		ours.grow(size, 0)
		status, lines, signed := submit(ours, old)
		if status == 200 {
			must(note.Open(append(signed, lines...), note.VerifierList(witness)))
		}
		fmt.Println(size, status)
		old = size
	}
	status, told, _ := submit(ours, 5)
	fmt.Println(12, status, strings.TrimSpace(string(told)))
	other.grow(9, 0)
	other.grow(15, 0xff)
	status, _, _ = submit(other, 12)
	fmt.Println(15, status)
}
