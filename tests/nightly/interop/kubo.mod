module odfd.test/kubo

go 1.25

require github.com/ipfs/kubo v0.43.0
