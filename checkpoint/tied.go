package checkpoint

import (
	"context"
	"slices"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/pattern"
)

// Tensors that two names share, and tensors that stand for others. One goroutine at a time uses a
// checkpoint, which nothing here changes.

// A Tie is a tensor that one of two checkpoints has under two names, such as an output layer that
// shares the weights of the embedding, and the other one under one of them.
type Tie struct {
	Tensor string // the name that one of them lacks
	To     string // the name that both have
	In     string // which one has both: "A" or "B"
}

var (
	// outputLayer matches the names of layers that often share the weights of an embedding.
	outputLayer = pattern.New(
		`(?:^|\.)(?:lm_head|output|output_layer|output_projection|embed_out|decoder)\.weight$`)
	// embeddingLayer matches the names of embeddings of tokens.
	embeddingLayer = pattern.New(`(?:^|\.)[^.]*(?:embed|wte|shared)[^.]*\.weight$`)
)

// ties looks for a tensor of x, which y lacks, under another name in y. One goroutine uses it;
// findTied compares names and does no I/O, nameOfTied may read tensors and wait.
type ties struct {
	x, y  *Checkpoint
	names map[string]*format.Tensor // tensors of y, by name
}

// findTied returns the tensor that y has, under another name, for the tensor t of x, and whether
// the contents must be compared, since the two were not saved from the same memory; nil where y has
// none.
func (s *ties) findTied(t *format.Tensor) (in *format.Tensor, compare bool) {
	same := func(u *format.Tensor) bool {
		return u != nil && u.DType == t.DType && u.Shape.Equal(t.Shape) && t.DType.Size() > 0
	}
	for i := range s.x.Tensors {
		o := &s.x.Tensors[i]
		if o.Name != t.Name && sameMemory(o, t) && same(s.names[o.Name]) {
			return s.names[o.Name], false
		}
	}
	// safetensors.torch.save_model leaves a note of what it leaves out.
	if kept, ok := s.y.Value(metadata + t.Name); ok {
		if name, is := kept.(string); is && same(s.names[name]) {
			return s.names[name], true
		}
	}
	if len(t.Shape) != 2 || !outputLayer.MatchString(t.Name) {
		return nil, false
	}
	for i := range s.x.Tensors {
		o := &s.x.Tensors[i]
		if o.Name != t.Name && embeddingLayer.MatchString(o.Name) && same(s.names[o.Name]) {
			return s.names[o.Name], true
		}
	}
	return nil, false
}

// sameMemory reports whether two tensors of one checkpoint are the same elements of the same files,
// and have any.
func sameMemory(a, b *format.Tensor) bool {
	return a.DType == b.DType && a.Shape.Equal(b.Shape) && len(a.Pieces) > 0 &&
		a.Shape.Box().Elements() > 0 &&
		slices.EqualFunc(a.Pieces, b.Pieces, func(p, q format.Piece) bool {
			return p.File == q.File && p.Offset == q.Offset && slices.Equal(p.Box, q.Box) &&
				slices.Equal(p.Strides, q.Strides)
		})
}

// nameOfTied returns the other name under which y has the tensor t of x; "" = it does not have it.
// It may read the two, by as many goroutines as workers says, and wait for them.
func (s *ties) nameOfTied(ctx context.Context, t *format.Tensor,
	workers int) (name string, err error) {
	in, compare := s.findTied(t)
	if in == nil {
		return "", nil
	}
	if compare {
		differs, err := compareElements(ctx, s.x, s.y, []pair{{t, in}}, workers)
		if err != nil || len(differs) > 0 {
			return "", err
		}
	}
	return in.Name, nil
}

// removeTied removes from the list found the tensors that the other checkpoint has under another
// name, and returns the rest and, as ties, what it has removed. It may read tensors and wait. a and
// b are for one goroutine meanwhile.
func removeTied(ctx context.Context, a, b *Checkpoint, found []Difference,
	workers int) (rest []Difference, list []Tie, err error) {
	index := func(c *Checkpoint) map[string]*format.Tensor {
		names := map[string]*format.Tensor{}
		for i := range c.Tensors {
			names[c.Tensors[i].Name] = &c.Tensors[i]
		}
		return names
	}
	inA, inB := index(a), index(b)
	for _, d := range found {
		s, t, in := ties{a, b, inB}, inA[d.Tensor], "A"
		if d.What == "only in B" {
			s, t, in = ties{b, a, inA}, inB[d.Tensor], "B"
		}
		if d.What != "only in A" && d.What != "only in B" {
			rest = append(rest, d)
			continue
		}
		name, err := s.nameOfTied(ctx, t, workers)
		if err != nil {
			return nil, nil, err
		}
		if name == "" {
			rest = append(rest, d)
		} else {
			list = append(list, Tie{d.Tensor, name, in})
		}
	}
	return rest, list, nil
}

// Placeholders lists the tensors that stand where a parameter should be, and have no elements: of
// floats, and of shape [0]. A state_dict has them that is saved while DeepSpeed's ZeRO-3 or FSDP
// has the parameters on other ranks. In a job's checkpoint such a tensor is what was registered. It
// reads no file.
func (c *Checkpoint) Placeholders() (names []string) {
	if c.Job {
		return nil
	}
	for i := range c.Tensors {
		if t := &c.Tensors[i]; t.DType.Float() && t.Coords == nil && len(t.Shape) == 1 &&
			t.Shape[0] == 0 {
			names = append(names, t.Name)
		}
	}
	return names
}
