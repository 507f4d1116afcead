package checkpoint

import (
	"cmp"
	"context"
	"crypto/sha256"
	"encoding/binary"
	"errors"
	"fmt"
	"hash/crc32"
	"slices"
	"sync"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/state/move"
)

const (
	mostParts = 400 << 20 // bytes of parts that are in memory at a time
	mostUnit  = mostParts / 4
	uploaders = 4 // parts that are sent at a time
)

// parts is the files of an output as regions of a move into a bucket. Each part of a file is put
// together in memory, and sent by who moves its last block. Blocks come in the order in which they
// lie in the files, so few parts are in memory at a time: each worker keeps at most the two that
// its block lies in, the two before in which the header of a zip entry waits for its checksum, and
// the two behind in which the directory does; and there is the part in which the next block begins.
type parts struct {
	ctx    context.Context
	bucket *s3.Bucket
	files  []*rising
	unit   int // of the largest file

	mu    sync.Mutex
	spare [][]byte // buffers of whole units
	bytes int      // of the parts in memory
	peak  int
}

// newParts takes the files apart. It fails when one has too many parts for the memory.
func newParts(ctx context.Context, b *s3.Bucket, o *format.Output) (*parts, error) {
	p := &parts{ctx: ctx, bucket: b}
	index := map[string]*rising{}
	for _, x := range o.Files {
		f := newRising(x, int64(b.Unit(int(x.Size))))
		if f.unit > mostUnit {
			return nil, fmt.Errorf("%s/%s would have %d bytes, and shoal writes files of up to "+
				"%d to a bucket: have more files, with more ranks, or with --max-file-bytes", b,
				x.Name, x.Size, int64(10_000*mostUnit))
		}
		p.unit = max(p.unit, int(f.unit))
		p.files, index[x.Name] = append(p.files, f), f
	}
	for _, x := range o.Frames {
		f := index[x.File]
		f.frames = append(f.frames, x)
	}
	sums := slices.Clone(o.Sums)
	slices.SortStableFunc(sums, func(x, y format.Sum) int { return cmp.Compare(x.From, y.From) })
	for _, x := range sums {
		index[x.File].addSum(x)
	}
	for _, f := range p.files {
		slices.SortFunc(f.frames, func(x, y format.Frame) int {
			return cmp.Compare(x.Offset, y.Offset)
		})
		slices.SortFunc(f.at, func(x, y sumPlace) int { return cmp.Compare(x.at, y.at) })
	}
	return p, nil
}

// workers is how many blocks may be under way, so that the parts in memory are no more than
// mostParts.
func (p *parts) workers() int { return min(max((mostParts/p.unit-1)/6, 1), uploaders) }

// begin hears what will be moved.
func (p *parts) begin(blocks []move.Block) {
	for _, b := range blocks {
		f := p.files[b.Region]
		for i := range f.span(b.From, b.To) {
			if f.blocks[i]++; f.blocks[i] == 1 {
				f.moving++
			}
		}
	}
}

// Name implements move.Target.
func (p *parts) Name(region int) string { return p.bucket.String() + "/" + p.files[region].name }

// Write implements move.Target.
func (p *parts) Write(region int, b []byte, at int64) error {
	return p.each(region, b, at, func(part, b []byte) { copy(part, b) })
}

// Read implements move.Source: of a block that has not ended, and so is in memory.
func (p *parts) Read(region int, b []byte, at int64) error {
	return p.each(region, b, at, func(part, b []byte) { copy(b, part) })
}

// each calls do with the bytes of parts and those of b that belong there.
func (p *parts) each(region int, b []byte, at int64, do func(part, b []byte)) error {
	f := p.files[region]
	for i := range f.span(at, at+int64(len(b))) {
		x := p.part(f, i)
		if from := at - x.from; from < 0 {
			do(x.bytes, b[-from:])
		} else {
			do(x.bytes[from:], b)
		}
	}
	return nil
}

// part returns a part that is in memory, or makes it, with all that is no element.
func (p *parts) part(f *rising, i int64) *part {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := f.live[i]
	if x != nil {
		return x
	}
	x = &part{number: i, from: i * f.unit}
	n := int(min(f.unit, f.size-x.from))
	if last := len(p.spare) - 1; last >= 0 && n > p.unit/2 {
		x.bytes, p.spare = p.spare[last][:n], p.spare[:last]
		clear(x.bytes)
	} else if n > p.unit/2 {
		x.bytes = make([]byte, n, p.unit)
	} else {
		x.bytes = make([]byte, n)
	}
	p.bytes += cap(x.bytes)
	p.peak = max(p.peak, p.bytes)
	f.fill(x)
	f.live[i] = x
	return x
}

// end sends the parts of which a block was the last. Behind the last part with blocks come those of
// a file that have none.
func (p *parts) end(b move.Block) error {
	f := p.files[b.Region]
	var whole []int64
	p.mu.Lock()
	for i := range f.span(b.From, b.To) {
		if f.blocks[i]--; f.blocks[i] == 0 {
			whole = append(whole, i)
			f.blocks[i] = -1
			f.moving--
		}
	}
	if len(whole) > 0 && f.moving == 0 {
		whole = append(whole, f.still()...)
	}
	p.mu.Unlock()
	return p.finish(f, whole)
}

// rest sends the files that have no blocks at all.
func (p *parts) rest() error {
	files := slices.DeleteFunc(slices.Clone(p.files), func(f *rising) bool {
		return len(f.still()) < len(f.blocks)
	})
	return group.Share(p.ctx, "upload", p.workers(), len(files), func() func(int) error {
		return func(i int) error { return p.finish(files[i], files[i].still()) }
	})
}

// finish adds parts to checksums, and sends all that wait for none.
func (p *parts) finish(f *rising, whole []int64) error {
	for _, i := range whole {
		x := p.part(f, i)
		ready := p.add(f, x)
		for _, x := range ready {
			if err := p.send(f, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// add adds a part to checksums. It returns the parts of which none is missing any more.
func (p *parts) add(f *rising, x *part) (ready []*part) {
	end := x.from + int64(len(x.bytes))
	first, _ := slices.BinarySearchFunc(f.sums, x.from, func(s risingSum, at int64) int {
		return cmp.Or(cmp.Compare(s.to, at), -1)
	})
	var sums []uint32 // of what is here of the sums from the first on
	for i := first; i < len(f.sums) && f.sums[i].from < end; i++ {
		s := &f.sums[i]
		from, to := max(s.from, x.from), min(s.to, end)
		sums = append(sums, shiftedCRC(crc32.ChecksumIEEE(x.bytes[from-x.from:to-x.from]), s.to-to))
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	for i, sum := range sums {
		if s := &f.sums[first+i]; s.from < s.to {
			s.value ^= sum
			s.left--
		}
	}
	f.waiting = append(f.waiting, x)
	f.waiting = slices.DeleteFunc(f.waiting, func(x *part) bool {
		missing := slices.ContainsFunc(f.places(x), func(at sumPlace) bool {
			return f.sums[at.sum].left > 0
		})
		if !missing {
			ready = append(ready, x)
		}
		return !missing
	})
	return ready
}

// send puts the checksums in and sends a part; with the last one the file is there.
func (p *parts) send(f *rising, x *part) error {
	for _, y := range f.places(x) {
		var sum [4]byte
		binary.LittleEndian.PutUint32(sum[:], f.sums[y.sum].value)
		if at := y.at - x.from; at < 0 {
			copy(x.bytes, sum[-at:])
		} else {
			copy(x.bytes[at:], sum[:])
		}
	}
	for from := 0; from < len(x.bytes); from += manifest.BlockBytes {
		f.hashes[(x.from+int64(from))/manifest.BlockBytes] = sha256.Sum256(
			x.bytes[from:min(from+manifest.BlockBytes, len(x.bytes))])
	}
	if err := p.open(f); err != nil {
		return err
	}
	if err := f.upload.Write(p.ctx, int(x.from), x.bytes); err != nil {
		return err
	}
	p.mu.Lock()
	delete(f.live, x.number)
	p.bytes -= cap(x.bytes)
	if cap(x.bytes) == p.unit {
		p.spare = append(p.spare, x.bytes)
	}
	f.left--
	last := f.left == 0
	p.mu.Unlock()
	if !last {
		return nil
	}
	err := f.upload.Close(p.ctx)
	f.whole = err == nil
	return err
}

// open begins the upload of a file.
func (p *parts) open(f *rising) (err error) {
	f.begin.Lock()
	defer f.begin.Unlock()
	if f.upload == nil {
		f.upload, err = p.bucket.Upload(p.ctx, f.name, int(f.size))
	}
	return err
}

// abort gives back what was sent of files that are not there.
func (p *parts) abort(ctx context.Context) error {
	var errs []error
	for _, f := range p.files {
		if f.upload != nil && !f.whole {
			errs = append(errs, f.upload.Abort(ctx))
		}
	}
	return errors.Join(errs...)
}

// sealed lists the files that were sent.
func (p *parts) sealed() (files []manifest.File) {
	for _, f := range p.files {
		files = append(files, manifest.File{Name: f.name, Size: f.size, Blocks: f.hashes})
	}
	return files
}
