package checkpoint

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/plural"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/state/move"
	"github.com/shoal-ml/shoal/state/plan"
)

// Options say how a move is made.
type Options struct {
	// as many blocks are under way at a time; into a bucket as many as parts of uploads have room
	// in memory
	Workers  int
	Seal     bool // with a manifest beside the files; in a bucket there is always one
	Progress func(done, all int64)

	block int64 // as move.Job has it
}

// A Report says what a move has done.
type Report struct {
	Stats   plan.Stats
	Ops     int        // boxes that were moved
	State   digest.Sum // of all tensors, the same in source and target
	Moved   int64      // bytes that were written
	Reused  int64      // bytes that an earlier run had written
	Dead    []string   // files that could not be read, whose parts were taken from replicas
	Already bool       // an earlier run had published everything, and nothing was left to do
}

// Move writes the tensors of a checkpoint as out says, which Lay has made of it, and publishes them
// as dst when all are there and their fingerprints are those of the source. A run that was stopped
// is continued by the same call: until then dst does not exist, and what is done lies in a folder
// beside it. It fails when dst is there already, or lies in the folder of the source. In a bucket,
// where dst is a URL, the same call begins anew, and what is below dst until the end has a mark
// that Open refuses.
func Move(ctx context.Context, src *Checkpoint, out *format.Output, dst string, o Options) (*Report,
	error) {
	if err := src.outside(dst); err != nil {
		return nil, err
	}
	from, err := newSource(src)
	if err != nil {
		return nil, err
	}
	unread, err := src.sound(ctx, o.Workers)
	if err != nil {
		return nil, err
	}
	id := identity(src, out)
	to, err := newTarget(ctx, dst, out, id)
	if errors.Is(err, errFinished) {
		return &Report{Already: true}, nil
	}
	if err != nil {
		return nil, err
	}
	t := transfer{src: src, unread: unread, from: from, to: to, options: o, key: src.key(id)}
	report, err := t.run(ctx)
	err = errors.Join(err, from.memory.Close(), to.close())
	void := false
	if err == nil {
		void, err = t.commit(ctx)
	}
	if err != nil {
		return nil, errors.Join(err, to.fail(ctx, void))
	}
	return report, nil
}

// key is that of the manifest, so that what was sealed can be compared; else one that the move
// itself gives.
func (c *Checkpoint) key(id move.Identity) *digest.Key {
	if c.sealed != nil {
		return digest.NewKey(c.sealed.Seed)
	}
	return digest.NewKey(binary.LittleEndian.Uint64(id[:]))
}

// transfer is a move of files under way.
type transfer struct {
	src     *Checkpoint
	unread  map[string]error // files of it that could not be read, and why
	from    *end
	to      target
	options Options
	key     *digest.Key
	tensors []manifest.Tensor
}

// run moves what is not there yet, over replicas of what cannot be read.
func (t *transfer) run(ctx context.Context) (*Report, error) {
	dead := map[int]bool{}
	var cause error
	for region, name := range t.from.memory.names {
		if err := t.unread[name]; err != nil {
			dead[region], cause = true, err
		}
	}
	for {
		p, err := t.to.plan(t.from.layout, dead)
		if err != nil {
			return nil, t.missing(err, cause)
		}
		job := move.Job{Plan: p, Old: t.from.spot, Source: &t.from.memory, Key: t.key,
			Workers: t.options.Workers, Block: t.options.block, Progress: t.options.Progress}
		if err := t.to.prepare(ctx, &job); err != nil {
			return nil, err
		}
		result, err := move.Run(ctx, job)
		var unread *move.SourceError
		if errors.As(err, &unread) && !dead[unread.Region] {
			dead[unread.Region], cause = true, err
			continue
		}
		if err != nil {
			return nil, err
		}
		r := &Report{Stats: p.Stats, Moved: result.Moved, Reused: result.Reused}
		for range p.Ops() {
			r.Ops++
		}
		for region := range dead {
			r.Dead = append(r.Dead, t.from.memory.Name(region))
		}
		for i, x := range p.Dst.Tensors {
			t.tensors = append(t.tensors,
				manifest.Tensor{Name: x.Name, DType: x.DType, Shape: x.Shape, Sum: result.Sums[i]})
		}
		r.State = (&manifest.Manifest{Tensors: t.tensors}).State(t.key)
		return r, nil
	}
}

// missing says of files what a plan says of ranks: that what could not be read is nowhere else.
func (t *transfer) missing(err, cause error) error {
	var lost *plan.LostError
	if cause == nil || !errors.As(err, &lost) {
		return errors.Join(cause, err)
	}
	var files []string
	for _, region := range lost.Ranks {
		files = append(files, t.from.memory.Name(region))
	}
	return fmt.Errorf("%w; no other file has these %d bytes of %s, %q the first: get %s whole "+
		"from where it was written, or leave them out with --only",
		cause, lost.Bytes, plural.Of(len(lost.Tensors), "tensor"), lost.Tensors[0],
		strings.Join(files, " or "))
}

// commit publishes what was moved, when the source is still what it was; else that is void.
func (t *transfer) commit(ctx context.Context) (void bool, err error) {
	if err := t.src.unchanged(); err != nil {
		return true, err
	}
	if err := t.src.asSealed(t.tensors); err != nil {
		return true, err
	}
	return false, t.to.publish(ctx, &manifest.Manifest{Seed: t.key.Seed(), Tensors: t.tensors},
		t.options)
}

// asSealed fails when what was read is not what the source's manifest says.
func (c *Checkpoint) asSealed(found []manifest.Tensor) error {
	if c.sealed == nil {
		return nil
	}
	sealed := map[string]manifest.Tensor{}
	for _, t := range c.sealed.Tensors {
		sealed[t.Name] = t
	}
	for _, t := range found {
		name := t.Name
		if old, renamed := c.renamed[name]; renamed {
			name = old
		}
		if s, ok := sealed[name]; ok && s.Sum != t.Sum {
			return fmt.Errorf("%s: tensor %q is not what was sealed (fingerprint %v, not %v); "+
				"shoal state verify shows where the damage is", c.path, name, t.Sum, s.Sum)
		}
	}
	return nil
}
