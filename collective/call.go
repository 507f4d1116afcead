// Package collective defines what ranks do together: calls, how they are matched, and a schedule
// for each collective.
//
// Every rank posts a Call. Matcher brings together the calls that belong to each other and finds
// the ranks that disagree. Schedule turns a complete set of calls into moves between spans of the
// ranks' buffers; each collective has a file for it. Executor executes the moves over memory, cut
// into chunks that any number of lanes may take, and Relay does so over several hosts. Nothing here
// starts a goroutine, reads a clock or opens a socket.
package collective

import (
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/topo"
)

// Kind names a collective. Its numbers are part of the arena format.
type Kind uint8

// The collectives, and the two halves of a point-to-point transfer.
const (
	AllReduce Kind = iota + 1
	ReduceScatter
	AllGather
	Broadcast
	Reduce
	Gather
	Scatter
	AllToAll
	Send
	Recv
	Barrier
	_ // the number of a request to become a member, which is no collective
	// Reshape brings the state of a job from one mesh to another. Only layouts say what goes
	// where, so that whoever executes a reshape makes its schedule.
	Reshape
)

var kindNames = [...]string{AllReduce: "all_reduce", ReduceScatter: "reduce_scatter",
	AllGather: "all_gather", Broadcast: "broadcast",
	Reduce: "reduce", Gather: "gather", Scatter: "scatter", AllToAll: "all_to_all", Send: "send",
	Recv: "recv", Barrier: "barrier",
	Reshape: "reshape"}

// Valid reports whether k is a known collective.
func (k Kind) Valid() bool { return k >= AllReduce && k <= Barrier || k == Reshape }

// String returns the name of the collective as clients call it, such as all_reduce.
func (k Kind) String() string {
	if !k.Valid() {
		return fmt.Sprintf("kind(%d)", uint8(k))
	}
	return kindNames[k]
}

// Rooted reports whether the collective has a root: one rank whose part differs from that of the
// others.
func (k Kind) Rooted() bool { return k == Broadcast || k == Reduce || k == Gather || k == Scatter }

// Reduces reports whether the collective combines elements.
func (k Kind) Reduces() bool { return k == AllReduce || k == ReduceScatter || k == Reduce }

// Pairwise reports whether the call is half of a transfer between two ranks.
func (k Kind) Pairwise() bool { return k == Send || k == Recv }

// Reduction says how elements are combined.
type Reduction uint8

// The reductions. Mean weighs every rank's input by its Call.Weight and divides by the sum of the
// weights; where all weights are equal, also where all are 0, it is the plain mean.
const (
	None Reduction = iota
	Sum
	Mean
	Min
	Max
	Prod
)

var reductionNames = [...]string{"none", "sum", "mean", "min", "max", "prod"}

// Valid reports whether r is a known reduction.
func (r Reduction) Valid() bool { return r <= Prod }

// String returns the name of the reduction, such as sum.
func (r Reduction) String() string {
	if !r.Valid() {
		return fmt.Sprintf("reduction(%d)", uint8(r))
	}
	return reductionNames[r]
}

// Call is one rank's part of a collective. Only Promote, SetToPiece and methods of Matcher change
// it, the last of them also Peer; while none of them runs, several goroutines may read it.
type Call struct {
	Kind      Kind
	DType     tensor.DType
	Reduction Reduction // meaningful where Kind.Reduces
	Group     topo.GroupID
	Peer      int // root, or partner of a send or receive, as an index into the group's members
	// Tag is that of a send or receive, and of an all-reduce what package arena says. Of an
	// all-to-all without Splits it is the size of the group for which the call was made; 0 = not
	// told.
	Tag     uint32
	Weight  float64 // weight of the input in a Mean, from 0 to 1e300
	In, Out []byte  // input and output memory; nil where the rank gives or takes nothing
	Splits  []int   // elements for each rank in an AllToAll; nil = the same for all
	Shape   []int   // shape of the tensor, which messages name and ranks must agree on
	Shared  Shared  // place of Out in a shared result; zero = Out is the rank's own memory
	Window  []byte  // window of a call in pieces, in place of In and Out; nil = no such call
	Flags

	// Promoted is whether the call stands in for the lost root of a broadcast: its In is what was
	// its Out.
	Promoted bool

	// Far is set for a call whose memory is on another host; nil = the memory is on this host.
	Far *Far
}

// NamesPartner reports whether the call is a send to a rank of the world, or a receive from one. It
// stays one for the worker that has the rank when it is made, whatever the view is later.
func (c *Call) NamesPartner() bool {
	return c.Kind.Pairwise() && c.Group == topo.World && c.Peer != AnyRank
}

// Flags say what a call is to its training step, and how it is carried out. All ranks of a
// collective give the same.
type Flags struct {
	// More is whether the step goes on after this call, which then counts only together with the
	// next ones, up to one without More.
	More bool

	// Step is whether a step of the job ends with this call.
	Step bool

	// Aside is whether the call is no part of the step that is under way: it completes at once, and
	// the step goes on after it.
	Aside bool

	// Narrow is whether partial sums of f16 and bf16 are rounded to that type between hosts.
	Narrow bool

	// Sparing is whether members are released one at a time, and none at the end of a step in which
	// one was lost.
	Sparing bool
}

// Far stands for memory on another host: Call.In and Call.Out are nil, and only their numbers of
// elements are known, and where they overlap.
type Far struct {
	In, Out int
	// Shares says that the block of the rank, in an all-gather or a reduce-scatter, overlaps the
	// memory of all blocks; it begins At bytes after the begin of that.
	Shares bool
	At     int
}

// AsFar returns what other hosts know of the memory of the call.
func (c *Call) AsFar() Far {
	at, shares := c.sharedPlace()
	return Far{In: c.InLen(), Out: c.OutLen(), Shares: shares, At: at}
}

// InLen returns the number of input elements.
func (c *Call) InLen() int {
	switch {
	case c.Far != nil:
		return c.Far.In
	case c.Window != nil:
		return c.windowElements()
	}
	return len(c.In) / c.DType.Size()
}

// OutLen returns the number of output elements.
func (c *Call) OutLen() int {
	switch {
	case c.Far != nil:
		return c.Far.Out
	case c.Window != nil:
		return c.windowElements()
	}
	return len(c.Out) / c.DType.Size()
}

// Promote changes c, a call of a broadcast, so that its rank is the root in place of one that is
// lost: what was its output is now its input. Nobody else may be reading c.
func (c *Call) Promote() {
	c.Promoted = true
	c.In, c.Out = c.Out, nil
	if c.Far != nil {
		c.Far.In, c.Far.Out = c.Far.Out, 0
	}
}

// String writes the call the way messages name it: all_reduce(f32[4,3], sum).
func (c *Call) String() string {
	var b strings.Builder
	b.WriteString(c.Kind.String())
	b.WriteByte('(')
	if c.Kind != Barrier {
		b.WriteString(c.DType.String())
		b.WriteString(strings.ReplaceAll(fmt.Sprint(c.Shape), " ", ","))
	}
	if c.Kind.Reduces() {
		fmt.Fprintf(&b, ", %v", c.Reduction)
	}
	switch {
	case c.Kind.Rooted():
		fmt.Fprintf(&b, ", root %d", c.Peer)
	case c.Kind == Send:
		fmt.Fprintf(&b, ", to %d, tag %d", c.Peer, c.Tag)
	case c.Kind == Recv && c.Peer == AnyRank:
		fmt.Fprintf(&b, ", from any, tag %d", c.Tag)
	case c.Kind == Recv:
		fmt.Fprintf(&b, ", from %d, tag %d", c.Peer, c.Tag)
	}
	switch {
	case c.More:
		b.WriteString(", more")
	case c.Step:
		b.WriteString(", step")
	case c.Aside:
		b.WriteString(", aside")
	}
	if c.Narrow {
		b.WriteString(", narrow")
	}
	if c.Sparing {
		b.WriteString(", sparing")
	}
	c.Shared.writeTo(&b, c.Group)
	b.WriteByte(')')
	return b.String()
}

// Check returns what is wrong with a call by itself, as a FieldError, for a group of size ranks of
// which the caller is number self; nil = nothing.
func (c *Call) Check(size, self int) error {
	switch {
	case !c.Kind.Valid():
		return fieldError("kind", "%d names no collective", uint8(c.Kind))
	case c.Kind == Barrier: // which has no memory
		return c.checkPieces()
	case !c.DType.Valid():
		return fieldError("dtype", "%d names no element type", uint8(c.DType))
	case !c.Reduction.Valid() || c.Kind.Reduces() && c.Reduction == None:
		return fieldError("reduction", "%v is no way to reduce", c.Reduction)
	case c.Kind.Reduces() && c.Reduction == Mean && !c.DType.Float():
		return fieldError("reduction",
			"the mean of %v is not a whole number: convert to f32 or f64, or use sum", c.DType)
	case c.Reduction == Mean && !(c.Weight >= 0 && c.Weight <= maxWeight):
		return fieldError("weight", "%v is not a number from 0 to %v", c.Weight, maxWeight)
	case c.Kind == Recv && c.Peer == AnyRank && size > 1:
	case (c.Kind.Rooted() || c.Kind.Pairwise()) && (c.Peer < 0 || c.Peer >= size):
		return fieldError("peer", "rank %d is outside a group of %d", c.Peer, size)
	case c.Kind.Pairwise() && c.Peer == self:
		return fieldError("peer", "rank %d cannot send to itself", c.Peer)
	}
	if err := c.checkShared(); err != nil {
		return err
	}
	if err := c.checkPieces(); err != nil {
		return err
	}
	if err := c.checkLengths(size, self); err != nil {
		return err
	}
	return c.checkOverlap()
}

// maxWeight bounds a weight, so that the sum of all weights is finite.
const maxWeight = 1e300

// checkLengths is the part of Check about the lengths of the input and the output, in elements, for
// member self of a group of size ranks.
func (c *Call) checkLengths(size, self int) error {
	in, out := c.InLen(), c.OutLen()
	root := self == c.Peer
	switch c.Kind {
	case AllReduce:
		if in != out {
			return fieldError("out.count", "%d elements for an input of %d", out, in)
		}
	case Reduce:
		if root && in != out {
			return fieldError("out.count", "%d elements at the root for an input of %d", out, in)
		}
	case Broadcast:
		if root && out != 0 && in != out {
			return fieldError("out.count", "%d elements at the root for an input of %d", out, in)
		}
	case AllToAll:
		return c.checkSplits(size, in)
	}
	return nil
}

// checkSplits is the part of Check about the split counts of an all-to-all over size ranks whose
// input has `in` elements.
func (c *Call) checkSplits(size, in int) error {
	if c.Splits == nil {
		if in%size != 0 {
			return fieldError("in.count",
				"%d elements do not split evenly over %d ranks: give the split counts", in, size)
		}
		return nil
	}
	if len(c.Splits) != size {
		return fieldError("splits.count", "%d split counts for a group of %d", len(c.Splits), size)
	}
	total := 0
	for i, n := range c.Splits {
		if n < 0 || n > in-total {
			return fieldError("splits", "count %d for rank %d exceeds the %d input elements", n, i,
				in)
		}
		total += n
	}
	if total != in {
		return fieldError("splits", "the counts add up to %d, the input has %d elements", total, in)
	}
	return nil
}

// FieldError names the field of a call that is wrong.
type FieldError struct {
	Field   string // field as the protocol of the arena names it, such as out.count
	Problem string // what is wrong with it
}

// Error implements error.
func (e *FieldError) Error() string { return e.Field + ": " + e.Problem }

// fieldError returns a FieldError whose problem is formatted as by fmt.Sprintf.
func fieldError(field, format string, args ...any) error {
	return &FieldError{field, fmt.Sprintf(format, args...)}
}
