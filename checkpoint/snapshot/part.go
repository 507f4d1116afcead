package snapshot

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"sync"
	"sync/atomic"
	"time"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
)

// A Part is what one worker writes of a checkpoint. The workers have agreed on the seed, which no
// other checkpoint has. One goroutine calls Check and then, the same or another one, Write; methods
// that change the part are for one goroutine at a time. Any goroutine may call Step once Check has
// returned nil, also during Write.
type Part struct {
	Folder Folder
	Seed   uint64 // seed of the checkpoint's fingerprints, part of the name of the attempt
	Rank   int    // rank of the worker, from 0
	State  []byte // description that all workers share, as AppendJSON writes it
	// Own is a JSON object with the state that only this worker has, by name.
	Own json.RawMessage
	// Body is the worker's Share, its runs one after the other. It must not change until Write
	// returns.
	Body []byte
	// Mesh returns where the state lies on a mesh; nil for a job without a mesh. With a mesh, Body
	// holds the tensors of the rank's ranks.Share.
	Mesh func(mesh string) (*MeshState, error)

	// Check fills in the fields below.
	meshShare *meshShare // nil = every worker holds all of the state
	state     *State     // the description, parsed
	runs      []Run      // runs of Body, one after the other; nil with a mesh
	head      []byte     // header of the worker's shard; nil with a mesh

	written atomic.Int64 // bytes of Body that are written
}

// Check fails for a part that cannot be written, and fills in the other fields. It must be called
// before Write. It does no I/O itself, but calls Mesh, which may wait; with a mesh it replaces
// State.
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
	p.head, err = p.state.shardHeader(p.Rank, p.runs, p.Own)
	return err
}

// Step returns the number of steps committed before the checkpoint.
func (p *Part) Step() uint64 { return p.state.Step }

// Written returns how many bytes of Body are written so far; any goroutine may call it.
func (p *Part) Written() int64 { return p.written.Load() }

// Write writes the part, and seals the checkpoint if it is the last one. It waits until that is
// durable. A failure abandons the checkpoint and is logged: training goes on. It returns whether
// the checkpoint needs no other part: it is sealed or abandoned.
func (p *Part) Write() bool {
	defer addProcessors(writerThreads)()
	begun, s := time.Now(), &staging{Attempt: Attempt{p.state.Step, p.Seed}, folder: p.Folder}
	sealed, err := p.write(s)
	where := fmt.Sprintf("checkpoint of step %d in %s", s.Step, s.folder.Root)
	switch {
	case isGone(err):
		p.Folder.Log(where + " is abandoned: its folder is gone, because another worker could " +
			"not write or left it behind")
	case err != nil:
		if removed, failed := s.abandon(); !removed && failed == nil {
			p.Folder.Log(fmt.Sprintf("%s has all its parts and is not sealed, which does not stop "+
				"the job: %v; it is sealed when the next one begins", where, err))
		} else {
			p.Folder.Log(fmt.Sprintf(
				"%s is abandoned, which does not stop the job: %v; the ones before it stay%s",
				where, err, fullDiskHint(err, p.Folder.Keep)))
		}
	case sealed:
		total := 0
		for _, t := range p.state.Tensors {
			total += t.Bytes()
		}
		p.Folder.Log(fmt.Sprintf("%s is sealed: %d bytes by %s, the last in %.1f s", where, total,
			plural.Of(p.state.Workers, "worker"), time.Since(begun).Seconds()))
	}
	return sealed || err != nil
}

// write writes the files of the part, and then its receipt; whoever writes the last receipt seals
// the checkpoint, and gets true. The worker with rank 0 first cleans up after earlier workers. It
// waits until all is durable.
func (p *Part) write(s *staging) (sealed bool, err error) {
	if p.Rank == 0 {
		if err := s.folder.cleanUp(s); err != nil {
			return false, err
		}
	}
	ctx, store := context.Background(), p.Folder.StoreOrLocal()
	switch err := store.Begin(ctx, s.Attempt); {
	case isGone(err): // not removed, but impossible to make
		return false, fmt.Errorf(
			"no folder for it can be made: %v; name one on a disk that takes folders", err)
	case err != nil:
		return false, err
	}
	r := receipt{Sums: map[int]uint64{}}
	if p.Rank == 0 {
		if err := r.addFile(ctx, s, StateName, &file{head: p.State}); err != nil {
			return false, err
		}
	}
	add := p.addShare
	if p.meshShare != nil {
		add = p.addMeshed
	}
	if err := add(ctx, s, &r); err != nil {
		return false, err
	}
	text, err := json.Marshal(r)
	if err == nil {
		err = store.Put(ctx, s.Attempt,
			fmt.Sprintf(".part-%05d-of-%05d.json", p.Rank, p.state.Workers), text)
	}
	if err != nil {
		return false, err
	}
	return s.seal()
}

// addShare writes the share of the worker, of a state that every worker holds, and records it in r.
func (p *Part) addShare(ctx context.Context, s *staging, r *receipt) error {
	f := &file{head: p.head, body: p.Body, written: &p.written, runs: p.runs,
		key:  digest.NewKey(p.Seed),
		sums: make([]digest.Sum, len(p.runs))}
	if err := r.addFile(ctx, s,
		fmt.Sprintf("shard-%05d-of-%05d.safetensors", p.Rank+1, p.state.Workers), f); err != nil {
		return err
	}
	for i, run := range p.runs {
		r.Sums[run.Tensor] = f.sums[i].Value
	}
	return nil
}

// A receipt records what a worker has written of a checkpoint. One goroutine uses it.
type receipt struct {
	Files []manifest.File `json:"files"`
	// Sums is the fingerprint of the worker's part of each tensor, by the tensor's index in the
	// state.
	Sums map[int]uint64 `json:"sums"`
}

// addFile writes a file of the attempt s, waits until it is durable, and records it.
func (r *receipt) addFile(ctx context.Context, s *staging, name string, f *file) error {
	if err := f.write(ctx, s, name); err != nil {
		return err
	}
	r.Files = append(r.Files, manifest.File{Name: name, Size: int64(f.size()), Blocks: f.blocks})
	return nil
}

// A file is a file on its way to the disk: a head, and the runs of a share one after the other. One
// goroutine calls write, whose own goroutines call the other methods, each for another range.
type file struct {
	head, body []byte
	written    *atomic.Int64 // counts the bytes of body that are written; nil = nobody does
	runs       []Run         // runs of body that are fingerprinted; nil = none
	key        *digest.Key   // key of the fingerprints; nil without runs

	blocks []manifest.Hash // hash of each block, set by the goroutine that writes it
	mu     sync.Mutex      // guards sums while write runs
	sums   []digest.Sum    // fingerprint of each run
}

// size returns the length of the file in bytes.
func (f *file) size() int { return len(f.head) + len(f.body) }

// write hashes, fingerprints and writes unit by unit, by writerThreads goroutines of low priority.
// It returns when everything is durable.
func (f *file) write(ctx context.Context, s *staging, name string) error {
	out, err := s.folder.StoreOrLocal().Create(ctx, s.Attempt, name, f.size())
	if err != nil {
		return err
	}
	f.blocks = make([]manifest.Hash, (f.size()+manifest.BlockBytes-1)/manifest.BlockBytes)
	unit := out.UnitBytes()
	err = group.Share(ctx, "checkpoint", writerThreads, (f.size()+unit-1)/unit,
		func() func(int) error {
			lowerPriority()
			return func(i int) error { return f.writeUnit(out, i*unit, min((i+1)*unit, f.size())) }
		})
	return out.Close(err)
}

// writeUnit hashes, fingerprints and writes the bytes from one offset in the file, the beginning of
// a block, up to another.
func (f *file) writeUnit(out Writer, from, to int) error {
	for at := from; at < to; at += manifest.BlockBytes {
		head, body, first := f.bytesIn(at, min(at+manifest.BlockBytes, to))
		hash := sha256.New()
		hash.Write(head)
		hash.Write(body)
		hash.Sum(f.blocks[at/manifest.BlockBytes][:0])
		f.addFingerprints(first, first+len(body))
	}
	head, body, _ := f.bytesIn(from, to)
	err := out.Write(from, head, body)
	if f.written != nil && err == nil {
		f.written.Add(int64(len(body)))
	}
	return err
}

// bytesIn returns the bytes from one offset in the file up to another that are of its head and of
// its body, and the offset in the body where the latter begin.
func (f *file) bytesIn(from, to int) (head, body []byte, first int) {
	cut := len(f.head)
	first = max(from-cut, 0)
	return f.head[min(from, cut):min(to, cut)], f.body[first:max(to-cut, 0)], first
}

// addFingerprints adds the bytes of the body from first to last to the fingerprints of their runs.
func (f *file) addFingerprints(first, last int) {
	at := 0
	for i, r := range f.runs {
		n := r.To - r.From
		if a, b := max(first, at), min(last, at+n); a < b {
			sum := f.key.RunSum(r.From+a-at, f.body[a:b])
			f.mu.Lock()
			f.sums[i] = f.sums[i].Plus(sum)
			f.mu.Unlock()
		}
		at += n
	}
}

// parseReceipt reads a receipt for a state of the given number of tensors. It is pure.
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

// fullDiskHint says, for the end of a message, what to do when err is that the disk is full, of
// whose checkpoints so many are kept; "" for another error. It is pure.
func fullDiskHint(err error, keep int) string {
	switch {
	case !durable.Full(err):
		return ""
	case keep == 1:
		return "; make room there for the next one"
	}
	return "; make room there for the next one, or keep fewer"
}
