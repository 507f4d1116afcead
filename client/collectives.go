package client

import (
	"context"
	"fmt"

	"github.com/shoal-ml/shoal/collective"
	"github.com/shoal-ml/shoal/tensor"
)

// The collectives, as functions since methods cannot have type parameters, and their options. Any
// goroutine may make calls. All but those called Async block until their part is done, ctx ends or
// the job does, and all ranks must make the same calls in the same order.

// Option adjusts a collective. It changes the call before that is submitted, and is called once.
type Option func(*call)

// Weight sets this rank's weight in a Mean, for example its number of samples. It is from 0 to
// 1e300; the default is 1. A rank with weight 0 is left out, unless all have weight 0: equal
// weights give the plain mean.
func Weight(w float64) Option { return func(c *call) { c.weight = w } }

// Tag sets the tag of a transfer, which tells transfers between the same two ranks apart.
func Tag(t uint32) Option { return func(c *call) { c.tag = t } }

// Splits sets how many elements an AllToAll sends to each rank, when they are not the same number.
func Splits(counts ...int) Option { return func(c *call) { c.splits = counts } }

// Shape sets the shape of the tensor that a flat slice is, for the other ranks and for error
// messages. Ranks must agree on it.
func Shape(dims ...int) Option { return func(c *call) { c.shape = dims } }

// More says that this collective is part of a step of training that goes on with the next one: all
// up to the one with EndStep count together, or not at all. One with neither is part of no step.
func More() Option { return func(c *call) { c.more = true } }

// EndStep ends a step of training. Trainer.Commit does it for a gradient in one piece.
func EndStep() Option { return func(c *call) { c.step = true } }

// AllReduce replaces x on every rank by the reduction of all ranks' x. All ranks end with the same
// bytes.
func AllReduce[T Element](ctx context.Context, r Ranks, x []T, op collective.Reduction,
	opts ...Option) error {
	return wait(ctx, startCall(ctx, r, collective.AllReduce, op, 0, x, x, opts))
}

// AllReduceAsync starts an AllReduce and does not wait for it. x must be left alone until Wait
// returns.
func AllReduceAsync[T Element](r Ranks, x []T, op collective.Reduction, opts ...Option) *Handle {
	return startCall(context.Background(), r, collective.AllReduce, op, 0, x, x, opts)
}

// ReduceScatter reduces the ranks' in, all of the same length, and gives rank r the r-th block:
// len(out) elements, which may differ between ranks and add up to len(in).
func ReduceScatter[T Element](ctx context.Context, r Ranks, out, in []T, op collective.Reduction,
	opts ...Option) error {
	return wait(ctx, startCall(ctx, r, collective.ReduceScatter, op, 0, in, out, opts))
}

// AllGather fills out on every rank with all ranks' in, in rank order. The lengths of in may
// differ; len(out) is their sum.
func AllGather[T Element](ctx context.Context, r Ranks, out, in []T, opts ...Option) error {
	return wait(ctx, startCall(ctx, r, collective.AllGather, collective.None, 0, in, out, opts))
}

// Broadcast replaces x on every rank by the root's.
func Broadcast[T Element](ctx context.Context, r Ranks, x []T, root int, opts ...Option) error {
	in, out := x, []T(nil)
	if r.group().rank != root {
		in, out = nil, x
	}
	return wait(ctx, startCall(ctx, r, collective.Broadcast, collective.None, root, in, out, opts))
}

// Reduce replaces x on the root by the reduction of all ranks' x; the others keep theirs.
func Reduce[T Element](ctx context.Context, r Ranks, x []T, op collective.Reduction, root int,
	opts ...Option) error {
	if r.group().rank == root {
		return wait(ctx, startCall(ctx, r, collective.Reduce, op, root, x, x, opts))
	}
	return wait(ctx, startCall(ctx, r, collective.Reduce, op, root, x, nil, opts))
}

// Gather fills out on the root with all ranks' in, in rank order; out counts only there.
func Gather[T Element](ctx context.Context, r Ranks, out, in []T, root int, opts ...Option) error {
	if r.group().rank != root {
		out = nil
	}
	return wait(ctx, startCall(ctx, r, collective.Gather, collective.None, root, in, out, opts))
}

// Scatter gives rank r the r-th block of the root's in: len(out) elements, which may differ between
// ranks; in counts only on the root.
func Scatter[T Element](ctx context.Context, r Ranks, out, in []T, root int, opts ...Option) error {
	if r.group().rank != root {
		in = nil
	}
	return wait(ctx, startCall(ctx, r, collective.Scatter, collective.None, root, in, out, opts))
}

// AllToAll sends block j of in to rank j and fills out with what the ranks send here, in rank
// order. The blocks are even, or as Splits says.
func AllToAll[T Element](ctx context.Context, r Ranks, out, in []T, opts ...Option) error {
	return wait(ctx, startCall(ctx, r, collective.AllToAll, collective.None, 0, in, out, opts))
}

// SendTo sends x to another rank, which must receive the same number of elements with the same tag.
// It blocks until that rank has it.
func SendTo[T Element](ctx context.Context, r Ranks, x []T, to int, opts ...Option) error {
	return wait(ctx, startCall(ctx, r, collective.Send, collective.None, to, x, nil, opts))
}

// RecvFrom blocks until another rank sends, and fills x with that.
func RecvFrom[T Element](ctx context.Context, r Ranks, x []T, from int, opts ...Option) error {
	return wait(ctx, startCall(ctx, r, collective.Recv, collective.None, from, nil, x, opts))
}

// Barrier blocks until every rank has called it.
func Barrier(ctx context.Context, r Ranks) error {
	h := startCall[uint8](ctx, r, collective.Barrier, collective.None, 0, nil, nil, nil)
	return h.Wait(ctx)
}

// wait is Wait of a handle that nobody else has, for calls in one line. It blocks as Wait does.
func wait(ctx context.Context, h *Handle) error {
	err := h.Wait(ctx)
	if err != nil && ctx.Err() != nil {
		h.leave()
	}
	return err
}

// startCall submits a call and returns its handle. An error before the call is under way is
// returned by the handle's Wait. Any goroutine may call it. It may block as call.submit does.
func startCall[T Element](ctx context.Context, r Ranks, kind collective.Kind,
	op collective.Reduction, peer int, in, out []T, opts []Option) *Handle {
	g := r.group()
	c := call{kind: kind, dtype: dtypeOf[T](), op: op, peer: peer, weight: 1, in: bytesOf(in),
		out: bytesOf(out)}
	for _, o := range opts {
		o(&c)
	}
	if kind == collective.AllToAll { // the agent refuses it where the members have changed by then
		c.tag = uint32(g.size)
	}
	if c.shape == nil && kind != collective.Barrier {
		c.flat[0] = max(len(in), len(out))
		if len(in) > 0 {
			c.flat[0] = len(in)
		}
		c.shape = c.flat[:]
	}
	h := &Handle{}
	switch {
	case g.freed.Load():
		h.err = errFreed
	case g.isAlone():
		h.err = c.doAlone(g)
	default:
		if err := c.submit(ctx, g, h); err != nil {
			h.err, h.calls = err, nil
		}
	}
	return h
}

// doAlone does a collective of a job of one, at once and without an agent, on the goroutine that
// makes the call. It fails for what an agent would refuse, such as another rank as peer.
func (c *call) doAlone(g *Group) error {
	if err := c.checkAlone(g.rank); err != nil {
		return &CallError{Problem: err.Error()}
	}
	if s := g.job.mem.sharedResultOf(c.out); s != nil {
		if c.inPlace() {
			return errInPlace
		}
		if err := s.makeOwn(); err != nil {
			return err
		}
	}
	copy(c.out, c.in)
	return nil
}

// checkAlone returns what is wrong with a collective of a job of one; nil = nothing. A worker that
// was released has the rank that it had before, or its number if it had none. It is pure.
func (c *call) checkAlone(rank int) error {
	if c.peer != 0 || c.kind.Pairwise() {
		return fmt.Errorf("%v with rank %d in a job of one", c.kind, c.peer)
	}
	in, out := len(c.in)/c.dtype.Size(), len(c.out)/c.dtype.Size()
	checked := collective.Call{Kind: c.kind, DType: c.dtype, Reduction: c.op, Weight: c.weight,
		Far: &collective.Far{In: in, Out: out}}
	if len(c.splits) > 0 {
		checked.Splits = c.splits
	}
	if err := checked.Check(1, rank); err != nil {
		return err
	}
	given := out > 0 || !c.kind.Rooted() || rank == c.peer // whether this rank is given an output
	if given && in != out && c.kind != collective.Broadcast {
		return fmt.Errorf("%v of %d elements into %d", c.kind, in, out)
	}
	n, err := tensor.Shape(c.dims()).Elements()
	if c.kind != collective.Barrier && (err != nil || n != in && n != out) {
		return fmt.Errorf("shape: %v does not hold the %d input or %d output elements", c.shape, in,
			out)
	}
	return nil
}
