package snapshot

import (
	"context"
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path/filepath"
	"runtime"
	"slices"

	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/manifest"
)

// How files of a sealed checkpoint are read: by blocks, which the manifest has hashes of.

// A blockRead is a range of a file that is copied into memory.
type blockRead struct {
	from int64 // offset in the file
	to   []byte
}

// blockReads are the ranges of a file that are copied into memory, by block. A block without ranges
// is read only to be compared with its hash. One goroutine fills them; readBlocks only reads them.
type blockReads map[int][]blockRead

// includeFirst has the first n blocks read, also where no range of them is copied, so that
// readBlocks can compare them with their hashes.
func (p blockReads) includeFirst(n int) {
	for i := range n {
		p[i] = slices.Clip(p[i])
	}
}

// addRange has the bytes from an offset of the file on copied into to.
func (p blockReads) addRange(at int64, to []byte) {
	for len(to) > 0 {
		block := at / manifest.BlockBytes
		n := min(int64(len(to)), (block+1)*manifest.BlockBytes-at)
		p[int(block)] = append(p[int(block)], blockRead{at, to[:n]})
		at, to = at+n, to[n:]
	}
}

// openChecked opens a file of the checkpoint. The error is ErrDamaged when its size is not the
// sealed one, or it is missing. The caller, a method of Sealed on the goroutine that reads the
// checkpoint, closes it.
func (s *Sealed) openChecked(f *manifest.File) (*os.File, error) {
	file, err := os.Open(filepath.Join(s.Path, filepath.FromSlash(f.Name)))
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("%w: %w", ErrDamaged, err)
	}
	if err != nil {
		return nil, err
	}
	info, err := file.Stat()
	if err == nil && info.Size() != f.Size {
		err = fmt.Errorf("%s has %d bytes, and had %d: %w", f.Name, info.Size(), f.Size, ErrDamaged)
	}
	if err != nil {
		return nil, errors.Join(err, file.Close())
	}
	return file, nil
}

// readBlocks reads those blocks of a file, which f describes, that are in want, compares the hashes
// of those that compare selects, and copies the wanted ranges. It does so on all processors, calls
// compare there, and returns when all is read. The error is ErrDamaged when a hash differs, or the
// file ends early.
func readBlocks(ctx context.Context, file *os.File, f *manifest.File, want blockReads,
	compare func(block int) bool) error {
	blocks := slices.Sorted(maps.Keys(want))
	if n := len(blocks); n > 0 && blocks[n-1] >= len(f.Blocks) {
		return fmt.Errorf("%s ends before block %d", f.Name, blocks[n-1])
	}
	return group.Share(ctx, "checkpoint", runtime.NumCPU(), len(blocks), func() func(int) error {
		buffer := make([]byte, min(manifest.BlockBytes, f.Size))
		return func(i int) error {
			block := blocks[i]
			at := int64(block) * manifest.BlockBytes
			b := buffer[:min(manifest.BlockBytes, f.Size-at)]
			n, err := file.ReadAt(b, at)
			if n < len(b) && err != io.EOF {
				return err
			}
			if n < len(b) || compare(block) && sha256.Sum256(b) != f.Blocks[block] {
				return fmt.Errorf("%s, bytes %d to %d: %w", f.Name, at, at+int64(len(b)),
					ErrDamaged)
			}
			for _, x := range want[block] {
				copy(x.to, b[x.from-at:])
			}
			return nil
		}
	})
}
