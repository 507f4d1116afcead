package checkpoint

import (
	"cmp"
	"slices"
	"sync"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/state/manifest"
)

// A rising file is one that is on its way into a bucket.
type rising struct {
	name   string
	size   int64
	unit   int64
	frames []format.Frame
	sums   []risingSum // by where their bytes begin
	at     []sumPlace  // ascending

	// Below the mutex of parts.
	blocks  []int32 // of each part, that are still to be moved
	moving  int     // parts that have blocks still to be moved
	left    int     // parts that are not sent yet
	live    map[int64]*part
	waiting []*part // for checksums
	hashes  []manifest.Hash

	begin  sync.Mutex
	upload *s3.Upload // nil before the first part is sent
	whole  bool
}

// A risingSum is a checksum that adds up.
type risingSum struct {
	from, to int64
	left     int // parts that have not added theirs
	value    uint32
}

// A sumPlace is where a checksum is to be written.
type sumPlace struct {
	at  int64
	sum int
}

// A part of a file, from a byte on.
type part struct {
	number int64
	from   int64
	bytes  []byte
}

func newRising(x format.OutputFile, unit int64) *rising {
	f := &rising{name: x.Name, size: x.Size, unit: unit, live: map[int64]*part{}}
	f.blocks = make([]int32, max(1, (x.Size+unit-1)/unit))
	f.left = len(f.blocks)
	f.hashes = make([]manifest.Hash, (x.Size+manifest.BlockBytes-1)/manifest.BlockBytes)
	return f
}

// addSum adds a checksum; they come by where their bytes begin.
func (f *rising) addSum(x format.Sum) {
	for _, at := range x.At {
		f.at = append(f.at, sumPlace{at, len(f.sums)})
	}
	s := risingSum{from: x.From, to: x.To}
	if x.From < x.To {
		s.left = int((x.To-1)/f.unit - x.From/f.unit + 1)
	}
	f.sums = append(f.sums, s)
}

// span yields the parts in which some bytes lie.
func (f *rising) span(from, to int64) func(yield func(int64) bool) {
	return func(yield func(int64) bool) {
		for i := from / f.unit; i*f.unit < to && yield(i); i++ {
		}
	}
}

// fill puts into a part what is no element.
func (f *rising) fill(x *part) {
	first, _ := slices.BinarySearchFunc(f.frames, x.from, func(y format.Frame, at int64) int {
		return cmp.Compare(y.Offset+int64(len(y.Bytes)), at)
	})
	for _, y := range f.frames[first:] {
		if y.Offset >= x.from+int64(len(x.bytes)) {
			break
		}
		if at := y.Offset - x.from; at < 0 {
			copy(x.bytes, y.Bytes[-at:])
		} else {
			copy(x.bytes[at:], y.Bytes)
		}
	}
}

// still lists the parts without blocks.
func (f *rising) still() (list []int64) {
	for i, n := range f.blocks {
		if n == 0 {
			list = append(list, int64(i))
		}
	}
	return list
}

// places are where checksums are written to a part, or over one of its ends.
func (f *rising) places(x *part) []sumPlace {
	search := func(at int64) int {
		i, _ := slices.BinarySearchFunc(f.at, at, func(y sumPlace, at int64) int {
			return cmp.Compare(y.at, at)
		})
		return i
	}
	return f.at[search(x.from-3):search(x.from+int64(len(x.bytes)))]
}
