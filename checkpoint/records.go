package checkpoint

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"hash/crc32"
	"iter"
	"slices"
	"sort"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/move"
)

// Files such as those of torch.save are archives, whose records have checksums: all of them, or
// those that are read, are compared. One goroutine at a time calls the methods of Checkpoint;
// workers is the number of goroutines among which they share the reading, and for which they wait.

// Records is the result of comparing the records of files with their checksums.
type Records struct {
	Compared        int // number of records that were compared
	WithoutChecksum int // number of records that have no checksum
	Faults          []format.Fault

	unread map[string]error // errors of the files that could not be read, by name
}

// Records reads all records of the files that have some, such as those of torch.save, and compares
// their checksums.
func (c *Checkpoint) Records(ctx context.Context, workers int) (*Records, error) {
	r, err := c.compareRecords(ctx, workers, nil)
	for _, unread := range r.unread {
		err = errors.Join(err, unread)
	}
	return r, err
}

// checkRecords fails when a record that holds tensors is damaged. It returns, by name, why each
// unreadable file could not be read.
func (c *Checkpoint) checkRecords(ctx context.Context, workers int) (unread map[string]error,
	err error) {
	r, err := c.compareRecords(ctx, workers, c.readSpans())
	if err == nil && len(r.Faults) > 0 {
		err = fmt.Errorf("%s: %v; restore the file from another copy, or leave out with --only "+
			"what lies there: shoal state check --read lists all that is damaged", c.path,
			r.Faults[0])
	}
	return r.unread, err
}

// compareRecords compares the records that the spans in used touch; nil means all records.
func (c *Checkpoint) compareRecords(ctx context.Context, workers int, used spans) (*Records,
	error) {
	found := &Records{unread: map[string]error{}}
	files := c.newReaderOf(c.archiveFiles())
	records, err := c.listRecords(ctx, workers, files, used, found.unread)
	records = slices.DeleteFunc(records, func(r format.Record) bool {
		if r.LacksSum() {
			found.WithoutChecksum++
		}
		return r.LacksSum()
	})
	sums, failed := sumRecords(ctx, workers, files, records, found.unread)
	for i := range records {
		r := &records[i]
		if found.unread[r.File] != nil {
			continue
		}
		found.Compared++
		if sums[i] != r.Sum {
			found.Faults = append(found.Faults,
				r.SumFault(sums[i], c.tensorsIn(r.File, r.From, r.To)))
		}
	}
	return found, errors.Join(err, failed, files.Close())
}

// archiveFiles returns the names of the files that are archives.
func (c *Checkpoint) archiveFiles() (names []string) {
	for _, a := range c.Files.Archives() {
		names = append(names, a.File)
	}
	return slices.Compact(names)
}

// listRecords reads the directories of archives, by files, and returns their records that used
// touches; nil = all. It adds files that it cannot read to unread.
func (c *Checkpoint) listRecords(ctx context.Context, workers int, files *reader, used spans,
	unread map[string]error) (records []format.Record, err error) {
	archives := c.Files.Archives()
	lists, failed := make([][]format.Record, len(archives)), make([]error, len(archives))
	err = group.Share(ctx, "checkpoint", workers, len(archives), func() func(int) error {
		return func(i int) error {
			if a := &archives[i]; used == nil || used.overlaps(a.File, a.From, a.To) {
				lists[i], failed[i] = a.Records(
					&format.File{Name: a.File, Size: a.To, ReaderAt: &readerFile{files, a.File}})
			}
			return nil
		}
	})
	for i, list := range lists {
		if failed[i] != nil {
			unread[archives[i].File] = failed[i]
		}
		for _, r := range list {
			if used == nil || used.overlaps(r.File, r.From, r.To) {
				records = append(records, r)
			}
		}
	}
	return records, err
}

// sumRecords reads records, by files, and returns the checksum (CRC-32) of each, computed from
// those of blocks. It adds files that it cannot read to unread.
func sumRecords(ctx context.Context, workers int, files *reader, records []format.Record,
	unread map[string]error) ([]uint32, error) {
	type block struct {
		record   int
		from, to int64
	}
	var blocks []block
	for i, r := range records {
		for from := r.From; from < r.To; from += move.BlockBytes {
			blocks = append(blocks, block{i, from, min(from+move.BlockBytes, r.To)})
		}
	}
	parts, failed := make([]uint32, len(blocks)), make([]error, len(blocks))
	bytes := func(i int) int64 { return blocks[i].to - blocks[i].from }
	err := shareItems(ctx, "checking sums", workers, len(blocks), bytes, func() func(int) error {
		buffer := make([]byte, move.BlockBytes)
		return func(i int) error {
			x := &blocks[i]
			b, r := buffer[:x.to-x.from], &records[x.record]
			if failed[i] = files.readBytes(r.File, b, x.from); failed[i] == nil {
				parts[i] = shiftedCRC(crc32.ChecksumIEEE(b), r.To-x.to)
			}
			return nil
		}
	})
	sums := make([]uint32, len(records))
	for i, x := range blocks {
		if failed[i] != nil {
			unread[records[x.record].File] = failed[i]
		}
		sums[x.record] ^= parts[i]
	}
	return sums, err
}

// A readerFile is one file of a reader, as an io.ReaderAt. Several goroutines may use it.
type readerFile struct {
	*reader
	name string
}

// ReadAt implements io.ReaderAt; it returns all bytes or an error.
func (r *readerFile) ReadAt(b []byte, at int64) (int, error) {
	if err := r.readBytes(r.name, b, at); err != nil {
		return 0, err
	}
	return len(b), nil
}

// allPieces yields everything of the files that is read: pieces, replicas, and what proves names.
// Some come several times.
func (c *Checkpoint) allPieces() iter.Seq2[*format.Tensor, *format.Piece] {
	return func(yield func(*format.Tensor, *format.Piece) bool) {
		each := func(t *format.Tensor, list []format.Piece) bool {
			for k := range list {
				if !yield(t, &list[k]) {
					return false
				}
			}
			return true
		}
		for i := range c.Tensors {
			if t := c.asStored(&c.Tensors[i]); !each(t, t.Pieces) || !each(t, t.Replicas) {
				return
			}
		}
		for _, p := range c.proofs() {
			if !each(&p.Main, p.Main.Pieces) || !each(&p.Model, p.Model.Pieces) {
				return
			}
		}
	}
}

// tensorsIn returns the names of the tensors that have elements in a range of a file, each once.
func (c *Checkpoint) tensorsIn(file string, from, to int64) (names []string) {
	for t, p := range c.allPieces() {
		if p.File == file && p.Offset < to && p.Offset+p.SpanBytes(t.DType) > from &&
			!slices.Contains(names, t.Name) {
			names = append(names, t.Name)
		}
	}
	return names
}

// spans are ranges of files. The ranges of a file are in order and do not touch.
type spans map[string][]span

// A span is the range of a file from one offset up to another.
type span struct{ from, to int64 }

// readSpans returns the ranges of files in which the tensors lie, and what proves their names.
func (c *Checkpoint) readSpans() spans {
	all := spans{}
	for t, p := range c.allPieces() {
		if n := p.SpanBytes(t.DType); n > 0 {
			all[p.File] = append(all[p.File], span{p.Offset, p.Offset + n})
		}
	}
	for file, list := range all {
		slices.SortFunc(list, func(a, b span) int { return cmp.Compare(a.from, b.from) })
		joined := list[:1]
		for _, s := range list[1:] {
			if last := &joined[len(joined)-1]; s.from <= last.to {
				last.to = max(last.to, s.to)
			} else {
				joined = append(joined, s)
			}
		}
		all[file] = joined
	}
	return all
}

// overlaps reports whether a range of a file overlaps one of the spans.
func (s spans) overlaps(file string, from, to int64) bool {
	list := s[file]
	i := sort.Search(len(list), func(i int) bool { return list[i].to > from })
	return i < len(list) && list[i].from < to
}
