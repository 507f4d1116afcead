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
)

// Route says how a move goes between hosts: along which trees, in pieces of which length, and on
// how many streams of each link. Its text has the strategy and the KiB of a piece, and the streams
// if there are several, such as ring/256 and ring/256x4.
type Route struct {
	Strategy Strategy
	Piece    int // bytes of partial sums sent as one: a power of two from MinPiece to MaxPiece
	Streams  int // streams of a link that carry pieces beside each other: 1 to MaxStreams
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
	return b, nil
}

// UnmarshalText reads what MarshalText wrote, and refuses everything else. The text may come from
// another host.
func (r *Route) UnmarshalText(text []byte) error {
	var room [32]byte
	name, _, _ := bytes.Cut(text, []byte("/"))
	for _, s := range Strategies() {
		for piece := MinPiece; piece <= MaxPiece && s.String() == string(name); piece *= 2 {
			for streams := 1; streams <= MaxStreams; streams++ {
				read := Route{s, piece, streams}
				if b, _ := read.AppendText(room[:0]); bytes.Equal(b, text) {
					*r = read
					return nil
				}
			}
		}
	}
	return fmt.Errorf("collective: %q is no route: a strategy, the KiB of its pieces, and "+
		"streams if there are several, such as %v or %v", text,
		Route{Ring{}, usualPiece, 1}, Route{Ring{}, usualPiece, MaxStreams})
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
			if r.Strategy.Parent(t, hosts, -1, i) != other.Strategy.Parent(t, hosts, -1, i) ||
				Source(r.Strategy, t, hosts, -1, i) != Source(other.Strategy, t, hosts, -1, i) {
				return false
			}
		}
	}
	return true
}

// Candidates returns the routes worth comparing for an all-reduce: every strategy, with pieces from
// the smallest up to one piece a segment, on one stream of a link, and on all streams where a
// segment has a piece for each.
func Candidates(hosts, bytes int) (routes []Route) {
	for _, s := range Strategies() {
		segment := bytes / s.Trees(hosts, -1)
		for piece := MinPiece; piece <= MaxPiece; piece *= 4 {
			routes = append(routes, Route{s, piece, 1})
			if MaxStreams*piece <= segment {
				routes = append(routes, Route{s, piece, MaxStreams})
			}
			if piece >= segment {
				break
			}
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
		return Route{Star{}, usualPiece, 1}
	case bytes <= cliqueBytes:
		return Route{Clique{}, usualPiece, 1}
	default:
		return Route{Ring{}, usualPiece, 1}
	}
}

// MaxBytes returns the bytes of the longest move of a set that agrees, as far as the lengths of its
// calls tell: the most that a host gives or gets, and for an all-to-all the even share of it.
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
