// Makes vectors.json: what a log and a witness of the C2SP ecosystem write of a tree of ours.
//
// In a folder with a go.mod that requires filippo.io/torchwood v0.9.0: go run make.go did:odf:… > vectors.json
package main

import (
	"bytes"
	"crypto/ed25519"
	"encoding/base64"
	"encoding/json"
	"fmt"
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

func seed(letter string) []byte { return bytes.Repeat([]byte(letter), 32) }

// signer of notes, from a seed: the private form of sumdb/note, whose public form it gives back too.
func signer(name string, secret []byte) (note.Signer, string) {
	key := ed25519.NewKeyFromSeed(secret)
	vkey := must(note.NewEd25519VerifierKey(name, key.Public().(ed25519.PublicKey)))
	id := strings.Split(vkey, "+")[1]
	private := fmt.Sprintf("PRIVATE+KEY+%s+%s+%s", name, id, base64.StdEncoding.EncodeToString(append([]byte{1}, secret...)))
	return must(note.NewSigner(private)), vkey
}

type tree struct{ hashes []tlog.Hash }

func (t *tree) ReadHashes(indexes []int64) ([]tlog.Hash, error) {
	found := make([]tlog.Hash, len(indexes))
	for i, index := range indexes {
		found[i] = t.hashes[index]
	}
	return found, nil
}

func main() {
	origin := os.Args[1] + "/2"
	log, vkey := signer(origin, seed("o"))
	witness := must(torchwood.NewCosignatureSigner("witness.example/w1", ed25519.NewKeyFromSeed(seed("w"))))
	t := &tree{}
	said := map[string]any{"origin": origin, "logKey": vkey, "witnessKey": witness.Verifier().String()}
	var cases []map[string]any
	sizes := []int64{1, 2, 5, 8, 13}
	var n, old int64
	for _, size := range sizes {
		for ; n < size; n++ {
			t.hashes = append(t.hashes, must(tlog.StoredHashes(n, bytes.Repeat([]byte{byte(n)}, 32), t))...)
		}
		root := must(tlog.TreeHash(size, t))
		text := torchwood.Checkpoint{Origin: origin, Tree: tlog.Tree{N: size, Hash: root}}.String()
		signed := must(note.Sign(&note.Note{Text: text}, log))
		cosigned := must(note.Sign(&note.Note{Text: text}, witness))
		proof := []string{}
		if old > 0 {
			for _, hash := range must(tlog.ProveTree(size, old, t)) {
				proof = append(proof, hash.String())
			}
		}
		request := fmt.Sprintf("old %d\n%s\n%s", old, strings.Join(append(proof, ""), "\n"), signed)
		if old == 0 {
			request = fmt.Sprintf("old 0\n\n%s", signed)
		}
		_, line, _ := bytes.Cut(cosigned, []byte("\n\n"))
		cases = append(cases, map[string]any{
			"old": old, "size": size, "root": root.String(), "proof": proof,
			"note": string(signed), "request": request, "cosignature": string(line),
		})
		old = size
	}
	said["cases"] = cases
	out := json.NewEncoder(os.Stdout)
	out.SetEscapeHTML(false)
	out.SetIndent("", " ")
	if err := out.Encode(said); err != nil {
		panic(err)
	}
}
