package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"time"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
)

// A Part is what one worker writes of a checkpoint. The workers have agreed on the seed, which no
// other checkpoint has.
type Part struct {
	Folder Folder
	Seed   uint64
	Rank   int
	State  []byte          // of all workers, as AppendJSON writes it
	Own    json.RawMessage // an object: what this worker has for itself, by name
	Body   []byte          // its Share, one run behind the other; left alone until Write returns
	// Mesh says where the state lies on a mesh; nil where there is none. Body then is the tensors
	// of the rank's ranks.Share.
	Mesh func(mesh string) (*Meshed, error)

	meshed *meshed // nil = all workers have all of the state
	state  *State
	runs   []Run
	head   []byte
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
		return fmt.Errorf("the part of rank %d in a checkpoint of %s", p.Rank,
			plural.Of(p.state.Workers, "worker"))
	}
	if !isObject(p.Own) {
		return errors.New("what the worker has for itself is no JSON object")
	}
	if p.state.Mesh != nil {
		return p.checkMeshed()
	}
	p.runs = p.state.Share(p.Rank)
	if want := Bytes(p.runs); len(p.Body) != want {
		return fmt.Errorf("%d bytes of the state, where the share of rank %d of %d has %d",
			len(p.Body), p.Rank, p.state.Workers, want)
	}
	p.head, err = p.state.header(p.Rank, p.runs, p.Own)
	return err
}

// Step is how many steps were committed before the checkpoint.
func (p *Part) Step() uint64 { return p.state.Step }

// Write writes the part, and seals the checkpoint if it is the last one. What goes wrong ends the
// checkpoint, and is said: training goes on.
func (p *Part) Write() {
	defer lend(writers)()
	begun, s := time.Now(), &staging{Attempt: Attempt{p.state.Step, p.Seed}, folder: p.Folder}
	sealed, err := p.write(s)
	where := fmt.Sprintf("checkpoint of step %d in %s", s.Step, s.folder.Root)
	switch {
	case gone(err):
		p.Folder.Say(where + " is abandoned: its folder is gone, because another worker could " +
			"not write or left it behind")
	case err != nil:
		if removed, failed := s.abandon(); !removed && failed == nil {
			p.Folder.Say(fmt.Sprintf("%s has all its parts and is not sealed, and training goes "+
				"on: %v; it is sealed when the next one begins", where, err))
		} else {
			p.Folder.Say(fmt.Sprintf(
				"%s is abandoned, and training goes on: %v; the ones before it are there%s", where,
				err, roomFor(err)))
		}
	case sealed:
		total := 0
		for _, t := range p.state.Tensors {
			total += t.Bytes()
		}
		p.Folder.Say(fmt.Sprintf("%s is sealed: %d bytes by %s, the last in %.1f s", where, total,
			plural.Of(p.state.Workers, "worker"), time.Since(begun).Seconds()))
	}
}

func (p *Part) write(s *staging) (sealed bool, err error) {
	if p.Rank == 0 {
		if err := s.folder.settle(s); err != nil {
			return false, err
		}
	}
	ctx, place := context.Background(), p.Folder.Where()
	switch err := place.Begin(ctx, s.Attempt); {
	case gone(err): // nobody has removed it: it cannot be there
		return false, fmt.Errorf(
			"no folder for it can be made: %v; name one on a disk that takes folders", err)
	case err != nil:
		return false, err
	}
	r := receipt{Sums: map[int]uint64{}}
	if p.Rank == 0 {
		if err := r.add(ctx, s, StateName, &file{head: p.State}); err != nil {
			return false, err
		}
	}
	add := p.addShare
	if p.meshed != nil {
		add = p.addMeshed
	}
	if err := add(ctx, s, &r); err != nil {
		return false, err
	}
	text, err := json.Marshal(r)
	if err == nil {
		err = place.Put(ctx, s.Attempt,
			fmt.Sprintf(".part-%05d-of-%05d.json", p.Rank, p.state.Workers), text)
	}
	if err != nil {
		return false, err
	}
	return s.seal()
}

// addShare writes the worker's share of a state that all workers have.
func (p *Part) addShare(ctx context.Context, s *staging, r *receipt) error {
	f := &file{head: p.head, body: p.Body, runs: p.runs, key: digest.NewKey(p.Seed),
		sums: make([]digest.Sum, len(p.runs))}
	if err := r.add(ctx, s,
		fmt.Sprintf("shard-%05d-of-%05d.safetensors", p.Rank+1, p.state.Workers), f); err != nil {
		return err
	}
	for i, run := range p.runs {
		r.Sums[run.Tensor] = f.sums[i].Value
	}
	return nil
}

// A receipt says what a part has come to.
type receipt struct {
	Files []manifest.File `json:"files"`
	// the fingerprint of what it has of a tensor, by the tensor's place in the state
	Sums map[int]uint64 `json:"sums"`
}

// add writes a file, and notes it.
func (r *receipt) add(ctx context.Context, s *staging, name string, f *file) error {
	if err := f.write(ctx, s, name); err != nil {
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

// write hashes, weighs and writes unit by unit. It returns when all is there for good.
func (f *file) write(ctx context.Context, s *staging, name string) error {
	out, err := s.folder.Where().Create(ctx, s.Attempt, name, f.size())
	if err != nil {
		return err
	}
	f.blocks = make([]manifest.Hash, (f.size()+manifest.BlockBytes-1)/manifest.BlockBytes)
	unit := out.Unit()
	err = group.Share(ctx, "checkpoint", writers, (f.size()+unit-1)/unit, func() func(int) error {
		stepBack()
		return func(i int) error { return f.unit(out, i*unit, min((i+1)*unit, f.size())) }
	})
	return out.Close(err)
}

// unit writes the bytes of a unit.
func (f *file) unit(out Writer, from, to int) error {
	for at := from; at < to; at += manifest.BlockBytes {
		head, body, first := f.slices(at, min(at+manifest.BlockBytes, to))
		hash := sha256.New()
		hash.Write(head)
		hash.Write(body)
		hash.Sum(f.blocks[at/manifest.BlockBytes][:0])
		f.weigh(first, first+len(body))
	}
	head, body, _ := f.slices(from, to)
	return out.Write(from, head, body)
}

// slices are the bytes of the file in its head and in its body, and where in the body those begin.
func (f *file) slices(from, to int) (head, body []byte, first int) {
	cut := len(f.head)
	first = max(from-cut, 0)
	return f.head[min(from, cut):min(to, cut)], f.body[first:max(to-cut, 0)], first
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
			return r, fmt.Errorf("a receipt: %d as the fingerprint of tensor %d of %d", sum, i,
				tensors)
		}
	}
	for _, f := range r.Files {
		if err := f.Check(); err != nil {
			return r, fmt.Errorf("a receipt: %w", err)
		}
	}
	return r, nil
}

// roomFor says what to do where the disk is full.
func roomFor(err error) string {
	if durable.Full(err) {
		return "; make room there, or keep fewer, and the next one is written"
	}
	return ""
}
