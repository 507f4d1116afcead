package collective

import (
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/topo"
)

// MaxName bounds the name of a shared result, in bytes.
const MaxName = 255

// Shared says where in a shared result the output of a call lies. A shared result is memory that
// all ranks of a host map to read, and only their agent writes, so that an output which is the same
// for all of them is written once. The zero value is an output in the rank's own memory. All ranks
// make the call with the same place: once the last of them has, none still reads what was there
// before.
type Shared struct {
	Group topo.GroupID // group whose result it is
	Name  string       // name of the result, 1 to MaxName bytes; "" = none
	Off   int          // bytes from the begin of the result to the output
}

// writeTo appends the place to the text of a call in a group.
func (s Shared) writeTo(b *strings.Builder, of topo.GroupID) {
	if s.Name == "" {
		return
	}
	fmt.Fprintf(b, ", into %q", s.Name)
	if s.Group != of {
		fmt.Fprintf(b, " of group %d", s.Group)
	}
	if s.Off > 0 {
		fmt.Fprintf(b, " at byte %d", s.Off)
	}
}

// checkShared is the part of Check about shared results: it returns an error for a shared result of
// a collective whose outputs differ between ranks. It only reads c.
func (c *Call) checkShared() error {
	if c.Shared.Name == "" || c.Kind == AllReduce || c.Kind == AllGather {
		return nil
	}
	return fieldError("out.segment", "the output of %v lies in the shared result %q, into which "+
		"only all_reduce and all_gather write: give memory of this rank's own", c.Kind,
		c.Shared.Name)
}

// distinctOutputs drops, in place, each output in the same memory as the last one before it that
// has memory here: the ranks of this host share one, and those of others have none here.
func distinctOutputs(dst []Span, calls []*Call) []Span {
	var first *byte
	n := 0
	for _, d := range dst {
		if out := calls[d.Member].Out; len(out) > 0 {
			if &out[0] == first {
				continue
			}
			first = &out[0]
		}
		dst[n] = d
		n++
	}
	return dst[:n]
}
