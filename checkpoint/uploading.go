package checkpoint

import (
	"cmp"
	"slices"
	"sync"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/state/manifest"
)

// An uploadingFile is a file on its way into a bucket. The mutex of its partWriter guards blocks,
// moving, unsent, live, waiting, and in sums what changes, while blocks are moved. The goroutine
// that sends a part alone writes the hashes of its blocks, and the one that sends the last part
// sets done.
type uploadingFile struct {
	name         string         // name of the file below the bucket
	size         int64          // bytes of the file
	partSize     int64          // bytes of each part but the last
	frames       []format.Frame // bytes that are not elements, in order of offsets
	sums         []pendingSum   // checksums, in order of where their bytes begin
	sumLocations []sumLocation  // where checksums are to be written, ascending

	blocks  []int32         // blocks still to be moved into each part; -1 = the part is complete
	moving  int             // number of parts with blocks still to be moved
	unsent  int             // number of parts that are not sent yet
	live    map[int64]*part // parts in memory, by number
	waiting []*part         // complete parts that wait for checksums
	hashes  []manifest.Hash // SHA-256 of each block of the manifest

	// opening guards upload while the upload begins.
	opening sync.Mutex
	upload  *s3.Upload // nil before the first part is sent
	done    bool       // whether the file exists in the bucket
}

// A pendingSum is a checksum to which parts are still being added. The mutex of the partWriter
// guards left, and value until left is 0.
type pendingSum struct {
	from, to int64  // range of the file that the checksum covers
	left     int    // number of parts that are not added yet
	value    uint32 // CRC-32, as far as parts are added
}

// A sumLocation says where a checksum is to be written.
type sumLocation struct {
	at  int64 // offset in the file
	sum int   // index into sums
}

// A part is a contiguous range of a file, assembled in memory. Goroutines that move different
// blocks write different bytes of it; one goroutine sends it after that.
type part struct {
	number int64  // position among the parts of the file, from 0
	from   int64  // offset in the file
	bytes  []byte // content of the part
}

// newUploadingFile splits a file of an output into parts of unit bytes. It sends nothing. It is
// pure: no other goroutine knows the file yet.
func newUploadingFile(x format.OutputFile, unit int64) *uploadingFile {
	f := &uploadingFile{name: x.Name, size: x.Size, partSize: unit, live: map[int64]*part{}}
	f.blocks = make([]int32, max(1, (x.Size+unit-1)/unit))
	f.unsent = len(f.blocks)
	f.hashes = make([]manifest.Hash, (x.Size+manifest.BlockBytes-1)/manifest.BlockBytes)
	return f
}

// addSum adds a checksum that is to be computed. Calls come in the order of where the bytes begin,
// before other goroutines have f.
func (f *uploadingFile) addSum(x format.Sum) {
	for _, at := range x.At {
		f.sumLocations = append(f.sumLocations, sumLocation{at, len(f.sums)})
	}
	s := pendingSum{from: x.From, to: x.To}
	if x.From < x.To {
		s.left = int((x.To-1)/f.partSize - x.From/f.partSize + 1)
	}
	f.sums = append(f.sums, s)
}

// partsIn yields the numbers of the parts that a range of bytes touches.
func (f *uploadingFile) partsIn(from, to int64) func(yield func(int64) bool) {
	return func(yield func(int64) bool) {
		for i := from / f.partSize; i*f.partSize < to && yield(i); i++ {
		}
	}
}

// copyFrames copies the bytes that are not elements into a part, which no other goroutine has yet.
func (f *uploadingFile) copyFrames(x *part) {
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

// partsWithoutBlocks returns the numbers of the parts into which no block was to be moved. The
// mutex of the partWriter is held, or no block is moved any more.
func (f *uploadingFile) partsWithoutBlocks() (list []int64) {
	for i, n := range f.blocks {
		if n == 0 {
			list = append(list, int64(i))
		}
	}
	return list
}

// locationsIn returns where checksums are to be written in a part, or across one of its ends.
func (f *uploadingFile) locationsIn(x *part) []sumLocation {
	search := func(at int64) int {
		i, _ := slices.BinarySearchFunc(f.sumLocations, at, func(y sumLocation, at int64) int {
			return cmp.Compare(y.at, at)
		})
		return i
	}
	return f.sumLocations[search(x.from-3):search(x.from+int64(len(x.bytes)))]
}
