package checkpoint

import (
	"context"
	"errors"
	"fmt"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/state/move"
)

// The methods of Checkpoint in this file read what has to be true before tensors are passed on. One
// goroutine at a time calls them; workers is the number of goroutines among which they share the
// reading, and for which they wait.

// Prove checks the proofs of all tensors, piece by piece, and returns the first failure of each
// proof that fails. The structure must have no faults. Most formats name their tensors, so that
// nothing has to be proved or read.
func (c *Checkpoint) Prove(ctx context.Context, workers int) ([]format.Fault, error) {
	type item struct {
		proof    *format.Proof
		from, to int
	}
	var items []item
	const most = move.BlockBytes / 4 // elements of an item
	for _, p := range c.proofs() {
		for n, from := p.Main.Shape.Box().Elements(), 0; from < n; from += most {
			items = append(items, item{p, from, min(from+most, n)})
		}
	}
	found := make([]*format.Fault, len(items))
	r := c.newReader()
	bytes := func(i int) int64 {
		x := &items[i]
		return int64(x.to-x.from) * int64(4+x.proof.Model.DType.Size())
	}
	err := shareItems(ctx, "checking names", workers, len(items), bytes, func() func(int) error {
		var main, model []byte
		return func(i int) error {
			x := &items[i]
			var err error
			if main, err = r.readElements(&x.proof.Main, x.from, x.to, main); err != nil {
				return err
			}
			if model, err = r.readElements(&x.proof.Model, x.from, x.to, model); err != nil {
				return err
			}
			if k, size := x.proof.FirstDifference(main, model), x.proof.Model.DType.Size(); k >= 0 {
				f := x.proof.FaultAt(x.from+k, main[4*k:4*k+4], model[size*k:size*k+size])
				found[i] = &f
			}
			return nil
		}
	})
	var faults []format.Fault
	failed := map[*format.Proof]bool{}
	for i, f := range found {
		if f != nil && !failed[items[i].proof] {
			failed[items[i].proof] = true
			faults = append(faults, *f)
		}
	}
	return faults, errors.Join(err, r.Close())
}

// checkContent checks all that tells whether the tensors are as they were written, but for sealed
// fingerprints: checksums of records, equal replicas, proofs of names, and the sealed hashes of
// files where the fingerprints are of other tensors. Whoever reads tensors to pass them on or to
// describe them calls it first. It returns, by name, why each unreadable file could not be read.
func (c *Checkpoint) checkContent(ctx context.Context, workers int) (unread map[string]error,
	err error) {
	if unread, err = c.checkRecords(ctx, workers); err != nil {
		return nil, err
	}
	if err := c.checkSealedFiles(ctx, workers); err != nil {
		return nil, err
	}
	if err := c.checkReplicas(ctx, workers); err != nil {
		return nil, err
	}
	return unread, c.checkProofs(ctx, workers)
}

// checkSealedFiles compares the files with their sealed hashes if the sealed fingerprints are of
// other tensors, and fails for damage.
func (c *Checkpoint) checkSealedFiles(ctx context.Context, workers int) error {
	if c.sealed == nil || !c.derived && !c.hasUnlisted() {
		return nil
	}
	damage, err := c.compareFiles(ctx, c.sealed, workers)
	if err == nil && len(damage) > 0 {
		err = fmt.Errorf("%s: %v; shoal state verify shows where the damage is", c.path, damage[0])
	}
	return err
}

// checkProofs fails when a proof of Prove fails.
func (c *Checkpoint) checkProofs(ctx context.Context, workers int) error {
	faults, err := c.Prove(ctx, workers)
	if err == nil && len(faults) > 0 {
		err = fmt.Errorf("%s: %v; leave the optimizer out with --only, or restore it from "+
			"another copy: shoal state check lists all that is wrong", c.path, faults[0])
	}
	return err
}

// proofs returns the proofs of all tensors, each once.
func (c *Checkpoint) proofs() (list []*format.Proof) {
	seen := map[*format.Proof]bool{}
	for i := range c.Tensors {
		for _, p := range c.Tensors[i].Proofs {
			if !seen[p] {
				seen[p] = true
				list = append(list, p)
			}
		}
	}
	return list
}

// readElements reads the elements of a tensor from one number up to another, in row-major order,
// into buffer, which it makes larger if need be, and returns them. Several goroutines may call it,
// each with a buffer of its own.
func (r *reader) readElements(t *format.Tensor, from, to int, buffer []byte) ([]byte, error) {
	n := (to - from) * t.DType.Size()
	buffer = slices.Grow(buffer[:0], n)[:n]
	return buffer, t.ReadRange(r.readBytes, from, to, buffer)
}
