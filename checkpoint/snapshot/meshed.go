package snapshot

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"slices"
	"sync"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/ranks"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/layout"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/tensor"
)

// How the state of a job whose workers hold different parts of it is written and read. The methods
// of Part are for one goroutine at a time, as are those of Sealed.

// A MeshState says where the state of a job with a mesh lies: each worker holds its rank's part.
// Nobody changes it.
type MeshState struct {
	Layout *layout.Layout
	Text   []byte // what ranks.DescribeSpread says of the layout
}

// A meshShare is a MeshState, and the share of it that a worker writes.
type meshShare struct {
	*MeshState
	share *ranks.Share
}

// ownStateName returns the name of the file with the state that a worker has for itself.
func ownStateName(rank, workers int) string {
	return fmt.Sprintf("own-%05d-of-%05d.json", rank, workers)
}

// checkMeshed is Check for a state that lies on a mesh, and Check calls it. It sets the state's
// list of tensors to that of the layout, for which it calls p.Mesh, and p.meshShare.
func (p *Part) checkMeshed() error {
	if p.Mesh == nil {
		return fmt.Errorf("the state is said to lie on mesh %q, and the job has none",
			*p.state.Mesh)
	}
	at, err := p.Mesh(*p.state.Mesh)
	if err != nil {
		return err
	}
	switch l := at.Layout; {
	case len(p.state.Tensors) > 0:
		return fmt.Errorf("%d tensors are listed; those of a state on a mesh are known",
			len(p.state.Tensors))
	case l.Ranks != p.state.Workers:
		return fmt.Errorf("mesh %q has %d ranks, and %d workers write the checkpoint",
			*p.state.Mesh, l.Ranks, p.state.Workers)
	}
	for _, t := range at.Layout.Tensors {
		p.state.Tensors = append(p.state.Tensors,
			Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape})
	}
	if p.State, err = p.state.AppendJSON(nil); err != nil {
		return err
	}
	share, err := ranks.ShareOf(at.Layout, p.Rank)
	if err != nil {
		return err
	}
	if len(p.Body) != share.Bytes {
		return fmt.Errorf("%d bytes of the state, where the share of rank %d of mesh %q has %d",
			len(p.Body), p.Rank, *p.state.Mesh, share.Bytes)
	}
	p.meshShare = &meshShare{at, share}
	return nil
}

// addMeshed writes the tensors of the worker's share, and the state that it has for itself. Worker
// 0 also writes where all tensors lie.
func (p *Part) addMeshed(ctx context.Context, s *staging, r *receipt) error {
	if err := r.addFile(ctx, s, ownStateName(p.Rank, p.state.Workers),
		&file{head: p.Own}); err != nil {
		return err
	}
	if p.Rank == 0 {
		if err := r.addFile(ctx, s, ranks.LayoutName, &file{head: p.meshShare.Text}); err != nil {
			return err
		}
	}
	share := p.meshShare.share
	if len(share.Tensors) == 0 {
		return nil
	}
	f := &file{head: share.Head, body: p.Body, written: &p.written}
	if err := r.addFile(ctx, s, share.Name, f); err != nil {
		return err
	}
	return p.fingerprint(ctx, r)
}

// fingerprint sets in r the contribution of the share to the fingerprint of each tensor. It
// computes on writerThreads goroutines of low priority, and waits for them.
func (p *Part) fingerprint(ctx context.Context, r *receipt) error {
	var mu sync.Mutex
	sums, key := map[int]digest.Sum{}, digest.NewKey(p.Seed)
	err := group.Share(ctx, "checkpoint", writerThreads, len(p.meshShare.share.Tensors),
		func() func(int) error {
			lowerPriority()
			return func(i int) error {
				stored := &p.meshShare.share.Tensors[i]
				for _, piece := range stored.Pieces {
					t := &p.meshShare.Layout.Tensors[piece.Tensor]
					sum := key.BoxSum(piece.Box, t.Shape, t.DType.Size(), p.Body[stored.At:],
						piece.View)
					mu.Lock()
					sums[piece.Tensor] = sums[piece.Tensor].Plus(sum)
					mu.Unlock()
				}
				return nil
			}
		})
	for i, sum := range sums {
		r.Sums[i] = sum.Value
	}
	return err
}

// ReadMeshed reads a rank's part of the state for a layout of any mesh, and no more, and waits
// until all is read. memory returns the zeroed bytes of one of its tensors, the same ones each
// time: it is called for every piece of the tensor, and they are written until ReadMeshed returns.
// After an error they hold a part; it is ErrDamaged where the bytes are proved to be wrong. Every
// block that is used is compared with its hash.
func (s *Sealed) ReadMeshed(ctx context.Context, l *layout.Layout, rank int,
	memory func(name string) []byte) error {
	w, err := s.planReads(l, rank, memory)
	if err != nil {
		return s.proveDamage(ctx, fmt.Errorf("%s: %w", s.Path, err))
	}
	for _, name := range slices.Sorted(maps.Keys(w)) {
		if err := s.readVerified(ctx, name, w[name]); err != nil {
			return s.proveDamage(ctx, fmt.Errorf("%s: %w", s.Path, err))
		}
	}
	return nil
}

// fileReads are the ranges to read, by file. One goroutine uses them.
type fileReads map[string]blockReads

// planReads returns which bytes of which files are a rank's state on a layout, and where in the
// memory of the local tensors they belong. It reads the headers.
func (s *Sealed) planReads(l *layout.Layout, rank int, memory func(name string) []byte) (fileReads,
	error) {
	if s.State.Mesh == nil {
		return nil, errors.New("it is of a job without a mesh")
	}
	files := format.NewFiles(durable.Folder(s.Path))
	defer files.Close()
	from, err := ranks.Read(files)
	if err != nil {
		return nil, err
	}
	w, heads, has := fileReads{}, map[string]int64{}, map[string]*format.Tensor{}
	for i := range from.Tensors {
		x := &from.Tensors[i]
		has[x.Name] = x
		for _, p := range x.Pieces {
			if head, seen := heads[p.File]; !seen || p.Offset < head {
				heads[p.File] = p.Offset
			}
		}
	}
	for _, local := range l.RankLocals(rank) {
		for _, p := range local.Pieces {
			t := &l.Tensors[p.Tensor]
			x := has[t.Name]
			if x == nil || x.DType != t.DType || !x.Shape.Equal(t.Shape) {
				return nil, fmt.Errorf("tensor %s is not in it as %v %v, as this program has it",
					t.Name, t.DType, t.Shape)
			}
			w.addPiece(x, p, memory(local.Name))
		}
	}
	w[StateName], w[ranks.LayoutName] = blockReads{}, blockReads{}
	for _, f := range s.files { // the headers are compared with their hashes, too
		head, is := heads[f.Name]
		if !is {
			head = f.Size
		}
		if p := w[f.Name]; p != nil {
			p.includeFirst(int((head + manifest.BlockBytes - 1) / manifest.BlockBytes))
		}
	}
	return w, nil
}

// addPiece adds the ranges of x that a piece of a local tensor needs; memory is that of the local
// tensor.
func (w fileReads) addPiece(x *format.Tensor, to layout.Piece, memory []byte) {
	size := x.DType.Size()
	for i := range x.Pieces {
		from := &x.Pieces[i]
		if !from.Box.Overlaps(to.Box) {
			continue
		}
		if w[from.File] == nil {
			w[from.File] = blockReads{}
		}
		for run := range tensor.Runs(from.Box.Intersect(to.Box), from.View(), to.View) {
			w[from.File].addRange(from.Offset+int64(run.A*size),
				memory[run.B*size:(run.B+run.N)*size])
		}
	}
}

// readVerified reads the wanted blocks of the file called name, and compares each with its hash.
func (s *Sealed) readVerified(ctx context.Context, name string, want blockReads) error {
	i := s.indexOf(name)
	if i < 0 {
		return fmt.Errorf("%s is not among the files that were sealed", name)
	}
	file, err := s.openChecked(&s.files[i])
	if err != nil {
		return err
	}
	defer file.Close()
	return readBlocks(ctx, file, &s.files[i], want, func(int) bool { return true })
}
