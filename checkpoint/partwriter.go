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
	"sort"
	"sync"

	"github.com/shoal-ml/shoal/checkpoint/s3"
	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/state/move"
)

const (
	maxPartBytes = 400 << 20        // bytes of parts in memory at a time
	maxPartSize  = maxPartBytes / 4 // bytes of one part
	maxUploads   = 4                // parts sent at a time
)

// A partWriter is the files of an output as regions of a move into a bucket. It assembles each part
// of a file in memory, and the goroutine that moves the last block of a part sends it. Blocks come
// in the order in which they lie in the files, so few parts are in memory at a time: each worker
// needs at most the two parts that its block spans, the two before in which the header of a zip
// entry waits for its checksum, and the two after in which the directory does; one more part holds
// the beginning of the next block. The goroutines of a move may call Name, Write, Read and endBlock
// at once, for different blocks.
type partWriter struct {
	ctx      context.Context // context of the move, since those who write have none
	bucket   *s3.Bucket
	files    []*uploadingFile // files of the output, by region
	partSize int              // bytes of a part of the largest file

	mu    sync.Mutex // guards what follows, and in files what uploadingFile says
	free  [][]byte   // unused buffers of partSize bytes
	bytes int        // bytes of the parts in memory
	peak  int        // largest value of bytes so far, which tests read
}

// newPartWriter splits the files into parts. It fails when a file needs larger parts than the
// memory allows. It sends nothing yet. The goroutine of Move calls it.
func newPartWriter(ctx context.Context, b *s3.Bucket, o *format.Output) (*partWriter, error) {
	p := &partWriter{ctx: ctx, bucket: b}
	index := map[string]*uploadingFile{}
	for _, x := range o.Files {
		f := newUploadingFile(x, int64(b.PartBytes(int(x.Size))))
		if f.partSize > maxPartSize {
			return nil, fmt.Errorf("%s/%s would have %d bytes, and shoal writes files of up to "+
				"%d to a bucket: have more files, with more ranks, or with --max-file-bytes", b,
				x.Name, x.Size, int64(10_000*maxPartSize))
		}
		p.partSize = max(p.partSize, int(f.partSize))
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
		slices.SortFunc(f.sumLocations, func(x, y sumLocation) int {
			return cmp.Compare(x.at, y.at)
		})
	}
	return p, nil
}

// maxBlocksInFlight returns the number of blocks that may be in flight while the parts in memory
// stay below maxPartBytes.
func (p *partWriter) maxBlocksInFlight() int {
	return min(max((maxPartBytes/p.partSize-1)/6, 1), maxUploads)
}

// countBlocks records all blocks that will be moved, before the first is: no other goroutine uses p
// yet.
func (p *partWriter) countBlocks(blocks []move.Block) {
	for _, b := range blocks {
		f := p.files[b.Region]
		for i := range f.partsIn(b.From, b.To) {
			if f.blocks[i]++; f.blocks[i] == 1 {
				f.moving++
			}
		}
	}
}

// Name implements move.Target: it returns the URL of a file. It takes no lock, since nothing
// changes the names.
func (p *partWriter) Name(region int) string {
	return p.bucket.String() + "/" + p.files[region].name
}

// Write implements move.Target: it copies b into the parts in memory, from an offset of a file on.
// It sends nothing.
func (p *partWriter) Write(region int, b []byte, at int64) error {
	return p.forEachPart(region, b, at, func(part, b []byte) { copy(part, b) })
}

// Read implements move.Source for a block that has not ended, which is in memory.
func (p *partWriter) Read(region int, b []byte, at int64) error {
	return p.forEachPart(region, b, at, func(part, b []byte) { copy(b, part) })
}

// forEachPart calls do with the bytes of each part that the range touches and the bytes of b from
// there on, without mu: no two goroutines have the same bytes of a part.
func (p *partWriter) forEachPart(region int, b []byte, at int64, do func(part, b []byte)) error {
	f := p.files[region]
	for i := range f.partsIn(at, at+int64(len(b))) {
		x := p.liveOrNewPart(f, i)
		if from := at - x.from; from < 0 {
			do(x.bytes, b[-from:])
		} else {
			do(x.bytes[from:], b)
		}
	}
	return nil
}

// liveOrNewPart returns part i of a file, which is in memory or is made with the bytes that are not
// elements. It locks mu.
func (p *partWriter) liveOrNewPart(f *uploadingFile, i int64) *part {
	p.mu.Lock()
	defer p.mu.Unlock()
	x := f.live[i]
	if x != nil {
		return x
	}
	x = &part{number: i, from: i * f.partSize}
	n := int(min(f.partSize, f.size-x.from))
	if last := len(p.free) - 1; last >= 0 && n > p.partSize/2 {
		x.bytes, p.free = p.free[last][:n], p.free[:last]
		clear(x.bytes)
	} else if n > p.partSize/2 {
		x.bytes = make([]byte, n, p.partSize)
	} else {
		x.bytes = make([]byte, n)
	}
	p.bytes += cap(x.bytes)
	p.peak = max(p.peak, p.bytes)
	f.copyFrames(x)
	f.live[i] = x
	return x
}

// endBlock sends the parts whose last block this was, and waits for that, without mu. After the
// last part with blocks of a file, it also sends the parts of the file that have none.
func (p *partWriter) endBlock(b move.Block) error {
	f := p.files[b.Region]
	var whole []int64
	p.mu.Lock()
	for i := range f.partsIn(b.From, b.To) {
		if f.blocks[i]--; f.blocks[i] == 0 {
			whole = append(whole, i)
			f.blocks[i] = -1
			f.moving--
		}
	}
	if len(whole) > 0 && f.moving == 0 {
		whole = append(whole, f.partsWithoutBlocks()...)
	}
	p.mu.Unlock()
	return p.sendWhole(f, whole)
}

// sendRest sends the files that have no blocks at all, several at once, and waits for that. The
// goroutine of Move calls it after the last block.
func (p *partWriter) sendRest() error {
	files := slices.DeleteFunc(slices.Clone(p.files), func(f *uploadingFile) bool {
		return len(f.partsWithoutBlocks()) < len(f.blocks)
	})
	return group.Share(p.ctx, "upload", p.maxBlocksInFlight(), len(files), func() func(int) error {
		return func(i int) error { return p.sendWhole(files[i], files[i].partsWithoutBlocks()) }
	})
}

// sendWhole adds complete parts, given by their numbers, to checksums, and sends all parts that
// wait for no checksum any more. It waits for the store; several goroutines may call it, for
// different parts.
func (p *partWriter) sendWhole(f *uploadingFile, whole []int64) error {
	for _, i := range whole {
		x := p.liveOrNewPart(f, i)
		ready := p.addToSums(f, x)
		for _, x := range ready {
			if err := p.sendPart(f, x); err != nil {
				return err
			}
		}
	}
	return nil
}

// addToSums adds a complete part to the checksums that cover it. It returns the parts that wait for
// no checksum any more, which the caller sends. It locks mu once the sums are computed.
func (p *partWriter) addToSums(f *uploadingFile, x *part) (ready []*part) {
	end := x.from + int64(len(x.bytes))
	// others change the values of sums meanwhile: only from and to may be read here
	first := sort.Search(len(f.sums), func(i int) bool { return f.sums[i].to > x.from })
	var sums []uint32 // contribution of this part to each sum from first on
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
		missing := slices.ContainsFunc(f.locationsIn(x), func(at sumLocation) bool {
			return f.sums[at.sum].left > 0
		})
		if !missing {
			ready = append(ready, x)
		}
		return !missing
	})
	return ready
}

// sendPart inserts the checksums into a part, which are complete by then, sends it and frees its
// memory. After the last part of a file it completes the upload. It waits for the store, without
// mu.
func (p *partWriter) sendPart(f *uploadingFile, x *part) error {
	for _, y := range f.locationsIn(x) {
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
	if err := p.openUpload(f); err != nil {
		return err
	}
	if err := f.upload.Write(p.ctx, int(x.from), x.bytes); err != nil {
		return err
	}
	p.mu.Lock()
	delete(f.live, x.number)
	p.bytes -= cap(x.bytes)
	if cap(x.bytes) == p.partSize {
		p.free = append(p.free, x.bytes)
	}
	f.unsent--
	last := f.unsent == 0
	p.mu.Unlock()
	if !last {
		return nil
	}
	err := f.upload.Close(p.ctx)
	f.done = err == nil
	return err
}

// openUpload begins the upload of a file if it has not begun. It waits for the store, with
// f.opening locked.
func (p *partWriter) openUpload(f *uploadingFile) (err error) {
	f.opening.Lock()
	defer f.opening.Unlock()
	if f.upload == nil {
		f.upload, err = p.bucket.Upload(p.ctx, f.name, int(f.size))
	}
	return err
}

// abortUploads aborts the uploads of the files that are not complete, and waits for the store. The
// goroutine of Move calls it when no other uses p.
func (p *partWriter) abortUploads(ctx context.Context) error {
	var errs []error
	for _, f := range p.files {
		if f.upload != nil && !f.done {
			errs = append(errs, f.upload.Abort(ctx))
		}
	}
	return errors.Join(errs...)
}

// sentFiles returns the files with their hashes, for the manifest; all are sent by then.
func (p *partWriter) sentFiles() (files []manifest.File) {
	for _, f := range p.files {
		files = append(files, manifest.File{Name: f.name, Size: f.size, Blocks: f.hashes})
	}
	return files
}
