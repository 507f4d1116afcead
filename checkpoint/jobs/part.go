package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
)

// A Part is what one worker writes of a checkpoint. The workers have agreed on the seed, which no other checkpoint has.
type Part struct {
	Folder Folder
	Seed   uint64
	Rank   int
	State  []byte          // of all workers, as AppendJSON writes it
	Own    json.RawMessage // an object: what this worker has for itself, by name
	Body   []byte          // its Share, one run behind the other; left alone until Write returns

	state *State
	runs  []Run
	head  []byte
}

// Check looks at all of a part. It must be called before Write.
func (p *Part) Check() (err error) {
	if err := p.Folder.check(); err != nil {
		return err
	}
	if p.state, err = ParseState(p.State); err != nil {
		return err
	}
	if p.Rank < 0 || p.Rank >= p.state.Workers {
		return fmt.Errorf("the part of rank %d in a checkpoint of %d workers", p.Rank, p.state.Workers)
	}
	if !isObject(p.Own) {
		return errors.New("what the worker has for itself is no JSON object")
	}
	p.runs = p.state.Share(p.Rank)
	if want := bytesOf(p.runs); len(p.Body) != want {
		return fmt.Errorf("%d bytes of the state, where the share of rank %d of %d has %d", len(p.Body), p.Rank, p.state.Workers, want)
	}
	p.head, err = p.state.header(p.Rank, p.runs, p.Own)
	return err
}

// Step is how many steps were committed before the checkpoint.
func (p *Part) Step() uint64 { return p.state.Step }

// Write writes the part, and seals the checkpoint if it is the last one. What goes wrong ends the checkpoint, and is said: training goes on.
func (p *Part) Write() {
	defer lend(writers)()
	begun, s := time.Now(), &staging{p.Folder, p.state.Step, p.Seed}
	sealed, err := p.write(s)
	where := fmt.Sprintf("checkpoint of step %d in %s", s.step, s.folder.Root)
	switch {
	case errors.Is(err, fs.ErrNotExist):
		p.Folder.Say(where + " is abandoned: its folder is gone, because another worker could not write or left it behind")
	case err != nil:
		s.abandon()
		p.Folder.Say(fmt.Sprintf("%s is abandoned, and training goes on: %v; the ones before it are there", where, err))
	case sealed:
		total := 0
		for _, t := range p.state.Tensors {
			total += t.Bytes()
		}
		p.Folder.Say(fmt.Sprintf("%s is sealed: %d bytes by %d workers, the last in %.1f s", where, total, p.state.Workers, time.Since(begun).Seconds()))
	}
}

func (p *Part) write(s *staging) (sealed bool, err error) {
	if p.Rank == 0 {
		if err := s.folder.settle(s); err != nil {
			return false, err
		}
	}
	if err := os.MkdirAll(s.path(), 0o777); err != nil {
		return false, err
	}
	var r receipt
	if p.Rank == 0 {
		if err := r.add(s, stateName, &file{head: p.State}); err != nil {
			return false, err
		}
	}
	f := &file{head: p.head, body: p.Body, runs: p.runs, key: digest.NewKey(p.Seed), sums: make([]digest.Sum, len(p.runs))}
	if err := r.add(s, fmt.Sprintf("shard-%05d-of-%05d.safetensors", p.Rank+1, p.state.Workers), f); err != nil {
		return false, err
	}
	r.Sums = map[int]uint64{}
	for i, run := range p.runs {
		r.Sums[run.Tensor] = f.sums[i].Value
	}
	text, err := json.Marshal(r)
	if err == nil {
		err = durable.Write(filepath.Join(s.path(), fmt.Sprintf(".part-%05d-of-%05d.json", p.Rank, p.state.Workers)), text)
	}
	if err != nil {
		return false, err
	}
	return s.seal()
}

// A receipt says what a part has come to.
type receipt struct {
	Files []manifest.File `json:"files"`
	Sums  map[int]uint64  `json:"sums"` // the fingerprint of what it has of a tensor, by the tensor's place in the state
}

// add writes a file, and notes it.
func (r *receipt) add(s *staging, name string, f *file) error {
	if err := f.write(filepath.Join(s.path(), name)); err != nil {
		return err
	}
	r.Files = append(r.Files, manifest.File{Name: name, Size: int64(f.size()), Blocks: f.blocks})
	return nil
}

// file is a file on its way to the disk: a head, and the runs of a share one behind the other.
type file struct {
	head, body []byte
	runs       []Run
	key        *digest.Key

	blocks []manifest.Hash
	mu     sync.Mutex
	sums   []digest.Sum // of the runs
}

func (f *file) size() int { return len(f.head) + len(f.body) }

// write hashes, weighs and writes block by block. It returns when all is on the disk.
func (f *file) write(path string) error {
	out, err := os.OpenFile(path, os.O_WRONLY|os.O_CREATE|os.O_TRUNC, 0o666)
	if err != nil {
		return err
	}
	f.blocks = make([]manifest.Hash, (f.size()+manifest.BlockBytes-1)/manifest.BlockBytes)
	err = group.Share(context.Background(), "checkpoint", writers, len(f.blocks), func() func(int) error {
		stepBack()
		return func(i int) error { return f.block(out, i) }
	})
	return errors.Join(err, out.Sync(), out.Close())
}

func (f *file) block(out *os.File, i int) error {
	from := i * manifest.BlockBytes
	to, cut := min(from+manifest.BlockBytes, f.size()), len(f.head)
	head, first, last := f.head[min(from, cut):min(to, cut)], max(from-cut, 0), max(to-cut, 0)
	hash := sha256.New()
	for _, b := range [][]byte{head, f.body[first:last]} {
		hash.Write(b)
		if _, err := out.WriteAt(b, int64(from)); err != nil {
			return err
		}
		from += len(b)
	}
	hash.Sum(f.blocks[i][:0])
	f.weigh(first, last)
	return nil
}

// weigh adds the bytes of the body from first to last to the fingerprints of their runs.
func (f *file) weigh(first, last int) {
	at := 0
	for i, r := range f.runs {
		n := r.To - r.From
		if a, b := max(first, at), min(last, at+n); a < b {
			sum := f.key.Run(r.From+a-at, f.body[a:b])
			f.mu.Lock()
			f.sums[i] = f.sums[i].Plus(sum)
			f.mu.Unlock()
		}
		at += n
	}
}

// parseReceipt reads a receipt for a state of so many tensors.
func parseReceipt(text []byte, tensors int) (r receipt, err error) {
	if err := json.Unmarshal(text, &r); err != nil {
		return r, fmt.Errorf("a receipt: %w", err)
	}
	for i, sum := range r.Sums {
		if i < 0 || i >= tensors || sum>>61 != 0 {
			return r, fmt.Errorf("a receipt: %d as the fingerprint of tensor %d of %d", sum, i, tensors)
		}
	}
	for _, f := range r.Files {
		if err := f.Check(); err != nil {
			return r, fmt.Errorf("a receipt: %w", err)
		}
	}
	return r, nil
}
