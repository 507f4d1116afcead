package collective

import (
	"bytes"
	"fmt"
	"strconv"
)

// Bounds of a Route's numbers.
const (
	MinPiece   = 64 << 10
	MaxPiece   = 1 << 20
	MaxStreams = 4
	MaxFirst   = 255
)

// Route says how a move goes between hosts: along which trees, in pieces of which length, on how
// many streams of each link, and which host stands first. Its text has the strategy and the KiB of
// a piece, and the streams and the first host where they are not 1 and 0, such as ring/256,
// ring/256x4 and double-tree/64@2.
type Route struct {
	Strategy Strategy
	Piece    int // bytes of partial sums sent as one: a power of two from MinPiece to MaxPiece
	Streams  int // streams of a link that carry pieces beside each other: 1 to MaxStreams

	// First is which of the hosts of a move has position 0 in the trees, from 0 to MaxFirst and
	// counted round: those after it follow, and those before it come last. It decides which hosts
	// are leaves. Moves that begin or end at one host have no use for it.
	First int
}

// position returns the position of host i of k hosts in the trees of the route.
func (r Route) position(k, i int) int { return (i - r.First%k + k) % k }

// host returns the number of the host that has position i of k in the trees; -1 stays -1.
func (r Route) host(k, i int) int {
	if i < 0 {
		return -1
	}
	return (i + r.First) % k
}

// Parent returns the host to which host i of k hosts sends its partial sums in tree t of an
// all-reduce by this route; -1 = it is the root.
func (r Route) Parent(t, k, i int) int {
	return r.host(k, r.Strategy.Parent(t, k, -1, r.position(k, i)))
}

// Source returns the host from which host i of k hosts gets the result of tree t of an all-reduce
// by this route; -1 = it is the root.
func (r Route) Source(t, k, i int) int {
	return r.host(k, Source(r.Strategy, t, k, -1, r.position(k, i)))
}

// String returns the text that MarshalText writes.
func (r Route) String() string {
	b, _ := r.AppendText(nil)
	return string(b)
}

// MarshalText implements encoding.TextMarshaler.
func (r Route) MarshalText() ([]byte, error) { return r.AppendText(nil) }

// AppendText implements encoding.TextAppender. It never fails.
func (r Route) AppendText(b []byte) ([]byte, error) {
	b = append(append(b, r.Strategy.String()...), '/')
	b = strconv.AppendInt(b, int64(r.Piece>>10), 10)
	if r.Streams > 1 {
		b = strconv.AppendInt(append(b, 'x'), int64(r.Streams), 10)
	}
	if r.First > 0 {
		b = strconv.AppendInt(append(b, '@'), int64(r.First), 10)
	}
	return b, nil
}

// UnmarshalText reads what MarshalText wrote, and refuses everything else. The text may come from
// another host.
func (r *Route) UnmarshalText(text []byte) error {
	var room [32]byte
	name, _, _ := bytes.Cut(text, []byte("/"))
	first := 0
	if _, after, is := bytes.Cut(text, []byte("@")); is {
		first, _ = strconv.Atoi(string(after)) // what is no number is not written again
	}
	if first < 0 || first > MaxFirst {
		name = nil
	}
	for _, s := range Strategies() {
		for piece := MinPiece; piece <= MaxPiece && s.String() == string(name); piece *= 2 {
			for streams := 1; streams <= MaxStreams; streams++ {
				read := Route{s, piece, streams, first}
				if b, _ := read.AppendText(room[:0]); bytes.Equal(b, text) {
					*r = read
					return nil
				}
			}
		}
	}
	return fmt.Errorf("collective: %q is no route: a strategy, the KiB of its pieces, streams if "+
		"there are several, and the first host if it is another one, such as %v or %v", text,
		Route{Ring{}, usualPiece, 1, 0}, Route{DoubleTree{}, MinPiece, MaxStreams, 2})
}

// Same reports whether two routes are the same for an all-reduce of so many bytes: over two hosts
// nearly all strategies have the same trees, and a short segment is one piece.
func (r Route) Same(other Route, hosts, bytes int) bool {
	trees := r.Strategy.Trees(hosts, -1)
	segment := (bytes + trees - 1) / trees
	if other.Strategy.Trees(hosts, -1) != trees ||
		min(r.Piece, segment) != min(other.Piece, segment) || r.Streams != other.Streams {
		return false
	}
	for t := range trees {
		for i := range hosts {
			if r.Parent(t, hosts, i) != other.Parent(t, hosts, i) ||
				r.Source(t, hosts, i) != other.Source(t, hosts, i) {
				return false
			}
		}
	}
	return true
}

// Candidates returns the routes worth comparing for an all-reduce of so many bytes over hosts whose
// cables are alike: every strategy, with pieces from the smallest up to one piece a segment, on one
// stream of a link, and on all streams where a segment has a piece for each.
func Candidates(hosts, bytes int) (routes []Route) {
	for _, s := range Strategies() {
		routes = appendPieces(routes, Route{Strategy: s}, hosts, bytes)
	}
	return routes
}

// CandidatesAround returns the routes worth comparing with Candidates where one host sends and gets
// less than the others can: those in which it is a leaf, or the root above a single host. Then it
// sends and gets each element once, and in all other routes some elements twice.
func CandidatesAround(slow, hosts, bytes int) (routes []Route) {
	next := (slow + 1) % hosts // then the slow host comes last, where trees have a leaf
	// In both trees of these it is either of the two: for an even number of hosts in two ways.
	firsts := []int{slow, next}
	if hosts%2 == 1 {
		firsts = []int{(slow + hosts - 1) % hosts}
	}
	for _, first := range firsts {
		routes = appendPieces(routes, Route{Strategy: DoubleTree{}, First: first}, hosts, bytes)
	}
	for _, s := range []Strategy{Tree{}, Star{}} {
		routes = appendPieces(routes, Route{Strategy: s, First: next}, hosts, bytes)
	}
	return routes
}

// appendPieces appends a route to a list with all pieces and streams that are worth comparing for
// an all-reduce of so many bytes over the hosts.
func appendPieces(routes []Route, r Route, hosts, bytes int) []Route {
	segment := bytes / r.Strategy.Trees(hosts, -1)
	for r.Piece = MinPiece; r.Piece <= MaxPiece; r.Piece *= 4 {
		r.Streams = 1
		routes = append(routes, r)
		if r.Streams = MaxStreams; r.Streams*r.Piece <= segment {
			routes = append(routes, r)
		}
		if r.Piece >= segment {
			break
		}
	}
	return routes
}

// usualPiece is a length in bytes at which headers and calls for a piece cost nothing, and a host
// sends the first piece on while the next ones are still on their way.
const usualPiece = 256 << 10

// Below these lengths in bytes, the latency of a step is more than the time that its bytes take.
const (
	starBytes   = 4 << 10
	cliqueBytes = 256 << 10
)

// DefaultRoute returns the route for a schedule whose longest move has so many bytes, as long as
// the network has not been measured. It calculates with whole numbers only, so that all hosts get
// the same result whatever their processors are.
func DefaultRoute(bytes int) Route {
	switch {
	case bytes <= starBytes:
		return Route{Star{}, usualPiece, 1, 0}
	case bytes <= cliqueBytes:
		return Route{Clique{}, usualPiece, 1, 0}
	default:
		return Route{Ring{}, usualPiece, 1, 0}
	}
}

// MaxBytes returns the bytes of the longest move of a set that agrees, as far as the lengths of its
// calls tell: the most that a host gives or gets, and for an all-to-all the even share of it. The
// head chooses a route by it. It only reads the calls.
func (r Ready) MaxBytes() (bytes int) {
	for _, p := range r.Calls {
		c := &p.Call
		n := 0
		switch c.Kind {
		case Barrier:
			return 0
		case ReduceScatter, Scatter:
			n = c.OutLen()
		case AllToAll:
			n = c.InLen() / len(r.Calls)
		case Broadcast:
			n = max(c.InLen(), c.OutLen())
		default:
			n = c.InLen()
		}
		bytes = max(bytes, n*c.DType.Size())
	}
	return bytes
}
