package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/checkpoint/snapshot"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/state/move"
	"github.com/shoal-ml/shoal/state/plan"
)

// How a checkpoint is moved to another layout or format. Move does it on its caller's goroutine, on
// which the methods of Checkpoint in this file run too; the work is shared among goroutines that it
// waits for.

// Options say how Move works.
type Options struct {
	// Workers is the number of goroutines that check the source, and of blocks in flight after
	// that; but into a bucket as many blocks are in flight as the memory for parts of uploads
	// allows, whatever Workers is.
	Workers int
	Seal    bool // whether to write a manifest; a bucket always gets one

	blockBytes int64 // bound of the bytes of a block, as move.Job.Block; 0 = the default
}

// A Report says what a move has done.
type Report struct {
	// State is the fingerprint of all tensors under digest.ShownSeed, equal in source and target.
	State  digest.Sum
	Moved  int64 // bytes written
	Reused int64 // bytes that an earlier run had written
	// Unreadable lists the files that could not be read, and whose parts came from replicas.
	Unreadable []string
	// AlreadyDone is whether an earlier run had published everything. Then all else is zero.
	AlreadyDone bool
}

// Move writes the tensors of a checkpoint as out, which Output made, and publishes them as dst when
// all are there and their fingerprints equal those of the source. It blocks until then; nobody else
// may use src meanwhile, which the caller closes. The same call continues a run
// that was stopped: until the end dst does not exist, and finished work lies in a folder beside it.
// Move fails when dst exists already, or lies in the folder of the source. In a bucket, where dst
// is a URL, the same call begins anew, and until the end a mark makes Open refuse what lies below
// dst.
func Move(ctx context.Context, src *Checkpoint, out *format.Output, dst string, o Options) (*Report,
	error) {
	if err := src.checkOverlap(dst); err != nil {
		return nil, err
	}
	sealed := o.Seal || snapshot.IsURL(dst)
	if sealed {
		if err := checkSealNames(fileNames(out)...); err != nil {
			return nil, err
		}
	}
	from, err := newSourceEndpoint(src)
	if err != nil {
		return nil, err
	}
	id := moveIdentity(src, out)
	to, err := newTarget(ctx, dst, out, id)
	if errors.Is(err, errFinished) {
		return &Report{AlreadyDone: true}, nil
	}
	if err != nil {
		return nil, err
	}
	t := transfer{src: src, from: from, to: to, options: o,
		key: src.digestKey(id, sealed)}
	var report *Report
	// This reads the source, which can take long: a target that cannot be has been refused.
	if t.unread, err = src.checkContent(ctx, o.Workers); err == nil {
		report, err = t.run(ctx)
	}
	err = errors.Join(err, from.files.Close(), to.close())
	void := false
	if err == nil {
		void, err = t.commit(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, to.cleanUpFailed(ctx, void))
	}
	return report, nil
}

// digestKey returns the key of the manifest, so that sealed fingerprints can be compared; or else,
// for a manifest that is to be written, a key that the move's identity determines; or else the key
// of the fingerprints that people see.
func (c *Checkpoint) digestKey(id move.Identity, seal bool) *digest.Key {
	switch {
	case c.sealed != nil:
		return digest.NewKey(c.sealed.Seed)
	case seal:
		return digest.NewKey(binary.LittleEndian.Uint64(id[:]))
	}
	return digest.NewKey(digest.ShownSeed)
}

// A transfer is a move of files in progress. The goroutine of Move alone calls its methods; run and
// commit read and write the files and wait for that.
type transfer struct {
	src     *Checkpoint
	unread  map[string]error // errors of the source files that could not be read, by name
	from    *endpoint        // the source
	to      target
	options Options
	key     *digest.Key       // key of the fingerprints
	tensors []manifest.Tensor // fingerprints of the tensors moved
}

// run moves what is not there yet, from replicas where a file cannot be read, and sets t.tensors.
// It publishes nothing. It uses as many goroutines as the options say.
func (t *transfer) run(ctx context.Context) (*Report, error) {
	dead, tell := map[int]bool{}, progressOf(ctx)
	var cause error
	for region, name := range t.from.files.names {
		if err := t.unread[name]; err != nil {
			dead[region], cause = true, err
		}
	}
	for {
		p, err := t.to.plan(t.from.layout, dead)
		if err != nil {
			return nil, t.missingError(err, cause)
		}
		job := move.Job{Plan: p, Old: t.from.location, Source: &t.from.files, Key: t.key,
			Shown:   digest.NewKey(digest.ShownSeed),
			Workers: t.options.Workers, Block: t.options.blockBytes,
			Progress: func(done, all int64) { tell("moving", done, all) }}
		if t.key.Seed() == digest.ShownSeed {
			job.Shown = nil // the sums are those that people see
		}
		if err := t.to.prepare(ctx, &job); err != nil {
			return nil, err
		}
		result, err := move.Run(ctx, job)
		var unread *move.SourceError
		if beyond := (*beyondError)(nil); errors.As(err, &beyond) {
			return nil, beyond // another plan would not help
		}
		if errors.As(err, &unread) && !dead[unread.Region] {
			dead[unread.Region], cause = true, err
			continue
		}
		if err != nil {
			return nil, err
		}
		r := &Report{Moved: result.Moved, Reused: result.Reused}
		r.Unreadable = t.unreadFiles(slices.Collect(maps.Keys(dead)))
		if job.Shown == nil {
			job.Shown, result.Shown = t.key, result.Sums
		}
		var shown manifest.Manifest
		for i, x := range p.Dst.Tensors {
			m := manifest.Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape, Sum: result.Sums[i]}
			t.tensors = append(t.tensors, m)
			m.Sum = result.Shown[i]
			shown.Tensors = append(shown.Tensors, m)
		}
		r.State = shown.StateSum(job.Shown)
		return r, nil
	}
}

// missingError restates a planner's error about lost ranks in terms of files; cause is why the last
// of these could not be read, nil = all could.
func (t *transfer) missingError(err, cause error) error {
	var lost *plan.LostError
	if cause == nil || !errors.As(err, &lost) {
		return errors.Join(cause, err)
	}
	return fmt.Errorf("%w; no other file has these %d bytes of %s, %q the first: get %s whole "+
		"from where it was written, or leave them out with --only",
		cause, lost.Bytes, plural.Of(len(lost.Tensors), "tensor"), lost.Tensors[0],
		strings.Join(t.unreadFiles(lost.Ranks), " or "))
}

// unreadFiles returns the names of the files that could not be read: those of regions, and those
// from which Cast reads in the place of its own.
func (t *transfer) unreadFiles(regions []int) (names []string) {
	cast := t.src.cast
	if cast != nil {
		names = cast.unreadable()
	}
	for _, region := range regions {
		if name := t.from.files.Name(region); cast == nil || cast.files[name] == nil {
			names = append(names, name)
		}
	}
	slices.Sort(names)
	return slices.Compact(names)
}

// commit publishes what was moved if the source has not changed. Otherwise the moved bytes are
// void.
func (t *transfer) commit(ctx context.Context) (void bool, err error) {
	if err := t.src.checkUnchanged(); err != nil {
		return true, err
	}
	if err := t.src.checkSealed(t.tensors); err != nil {
		return true, err
	}
	return false, t.to.publish(ctx, &manifest.Manifest{Seed: t.key.Seed(), Tensors: t.tensors},
		t.options)
}

// SealError says that a tensor which could be read is not what was sealed. Nothing changes it.
type SealError struct {
	// Path is that of the checkpoint, and Tensor the name of the tensor in its seal.
	Path, Tensor string
	// Found is the fingerprint of what was read, and Sealed that of the seal.
	Found, Sealed digest.Sum
}

// Error says what is damaged, and what shows where.
func (e *SealError) Error() string {
	return fmt.Sprintf("%s: tensor %q is not what was sealed (fingerprint %v, not %v); "+
		"shoal state verify shows where the damage is", e.Path, e.Tensor, e.Found, e.Sealed)
}

// checkSealed returns a SealError when the fingerprints of what was read differ from those in the
// checkpoint's manifest. It passes over tensors that the manifest does not list as the reader has
// them, for which checkContent compares the files, and over those that Cast has rounded.
func (c *Checkpoint) checkSealed(found []manifest.Tensor) error {
	if c.sealed == nil {
		return nil
	}
	sealed := map[string]manifest.Tensor{}
	for _, t := range c.sealed.Tensors {
		sealed[t.Name] = t
	}
	rounded := c.roundedNames()
	for _, t := range found {
		name := t.Name
		if old, renamed := c.renamed[name]; renamed {
			name = old
		}
		if s, ok := sealed[name]; ok && s.Sum != t.Sum && !c.unlistedNames[name] &&
			!rounded[name] && !rounded[t.Name] {
			return &SealError{c.path, name, t.Sum, s.Sum}
		}
	}
	return nil
}
