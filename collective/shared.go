package collective

import (
	"fmt"
	"strings"

	"github.com/shoal-ml/shoal/topo"
)

// MaxName bounds the name of a shared result, in bytes.
const MaxName = 255

// Shared says where in a shared result the output of a call lies. That is memory which all ranks of
// a host map to read, and only their agent writes: what comes out the same on all of them is
// written there once. The zero value is an output that is the rank's own. All ranks give the same,
// so that nobody still reads the result before when the last of them has made the call.
type Shared struct {
	Group topo.GroupID // group whose result it is
	Name  string       // name of the result, 1 to MaxName bytes; "" = none
	Off   int          // bytes from the begin of the result to the output
}

// write adds the place to the text of a call of a group.
func (s Shared) write(b *strings.Builder, of topo.GroupID) {
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

func (c *Call) checkShared() error {
	if c.Shared.Name == "" || c.Kind == AllReduce || c.Kind == AllGather {
		return nil
	}
	return fieldError("out.segment", "the output of %v lies in the shared result %q, into which "+
		"only all_reduce and all_gather write: give memory of this rank's own", c.Kind,
		c.Shared.Name)
}

// distinct lists the memory of outputs a single time: the ranks of a host have the same one.
func distinct(dst []Span, calls []*Call) []Span {
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
