package jobs

import (
	"context"
	"crypto/sha256"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"sync/atomic"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/internal/group"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/tensor"
	"github.com/shoal-ml/shoal/tensor/safetensors"
)

// A Sealed is a checkpoint that is whole, as its seal says.
type Sealed struct {
	Path   string
	State  *State
	Own    map[int]json.RawMessage // what each worker had for itself, by rank; Read fills it in
	Blocks int                     // of all files: as many hashes can be compared

	files []manifest.File
}

// Open reads what the checkpoint of a step is of.
func (f Folder) Open(step uint64) (*Sealed, error) {
	s := &Sealed{Path: f.Path(step), Own: map[int]json.RawMessage{}}
	text, err := durable.Read(filepath.Join(s.Path, stateName), maxText)
	if err != nil {
		return nil, err
	}
	if s.State, err = ParseState(text); err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	if text, err = durable.Read(filepath.Join(s.Path, manifest.Name), manifest.MaxBytes); err != nil {
		return nil, err
	}
	m, err := manifest.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	for _, file := range m.Files {
		s.Blocks += len(file.Blocks)
	}
	s.files = m.Files
	return s, nil
}

// Read reads all tensors into memory: into[i] has as many bytes as tensor i. Of the blocks of all files, each turns-th from turn on is
// compared with its hash; it returns how many that were.
func (s *Sealed) Read(ctx context.Context, into [][]byte, turn, turns int) (compared int, err error) {
	covered := make([]int, len(into))
	for _, f := range s.files {
		n, err := s.readFile(ctx, f, into, covered, turn, turns)
		compared += n
		if err != nil {
			return compared, fmt.Errorf("%s: %w", filepath.Join(s.Path, f.Name), err)
		}
	}
	for i, n := range covered {
		if t := s.State.Tensors[i]; n != t.Bytes() {
			return compared, fmt.Errorf("%s has %d bytes of tensor %s, of %d", s.Path, n, t.Name, t.Bytes())
		}
	}
	return compared, nil
}

// A stretch is bytes of a file that belong into memory.
type stretch struct {
	from int64
	to   []byte
}

func (s *Sealed) readFile(ctx context.Context, f manifest.File, into [][]byte, covered []int, turn, turns int) (int, error) {
	file, err := os.Open(filepath.Join(s.Path, filepath.FromSlash(f.Name)))
	if err != nil {
		return 0, err
	}
	defer file.Close()
	info, err := file.Stat()
	if err == nil && info.Size() != f.Size {
		err = fmt.Errorf("it has %d bytes, %d when it was sealed", info.Size(), f.Size)
	}
	if err != nil {
		return 0, err
	}
	var stretches []stretch
	if strings.HasSuffix(f.Name, ".safetensors") {
		if stretches, err = s.stretches(file, f, into, covered); err != nil {
			return 0, err
		}
	}
	var compared atomic.Int64
	err = group.Share(ctx, "checkpoint", runtime.NumCPU(), len(f.Blocks), func() func(int) error {
		buffer := make([]byte, min(manifest.BlockBytes, f.Size))
		return func(i int) error {
			at := int64(i) * manifest.BlockBytes
			b := buffer[:min(manifest.BlockBytes, f.Size-at)]
			if n, err := file.ReadAt(b, at); n < len(b) {
				return err
			}
			if i%turns == turn {
				if sha256.Sum256(b) != f.Blocks[i] {
					return fmt.Errorf("bytes %d to %d: not as it was sealed", at, at+int64(len(b)))
				}
				compared.Add(1)
			}
			for _, x := range stretches {
				if first, last := max(at, x.from), min(at+int64(len(b)), x.from+int64(len(x.to))); first < last {
					copy(x.to[first-x.from:last-x.from], b[first-at:])
				}
			}
			return nil
		}
	})
	return int(compared.Load()), err
}

// stretches reads the header of a shard.
func (s *Sealed) stretches(file io.ReaderAt, f manifest.File, into [][]byte, covered []int) (list []stretch, err error) {
	h, err := safetensors.ReadHeader(f.Name, file, f.Size)
	if err != nil {
		return nil, err
	}
	var offsets map[string]struct {
		Starts tensor.Shape `json:"saved_offsets"`
	}
	var own ownJSON
	if err := errors.Join(json.Unmarshal([]byte(h.Metadata[shardingInfo]), &offsets), json.Unmarshal([]byte(h.Metadata[ownKey]), &own)); err != nil {
		return nil, fmt.Errorf("the metadata: %w", err)
	}
	s.Own[own.Rank] = own.Own
	index := map[string]int{}
	for i, t := range s.State.Tensors {
		index[t.Name] = i
	}
	for _, part := range h.Tensors {
		i, known := index[part.Name]
		starts, n, from := offsets[part.Name].Starts, int(part.End-part.Begin), 0
		fits := known && len(starts) == len(s.State.Tensors[i].Shape)
		if fits && len(starts) > 0 {
			t := s.State.Tensors[i]
			start := starts[t.axis()]
			fits = start >= 0 && start <= t.Bytes()/t.row()
			from = start * t.row()
		}
		if !fits || n > len(into[i])-from {
			return nil, fmt.Errorf("tensor %q does not fit into the state", part.Name)
		}
		list = append(list, stretch{h.Data + part.Begin, into[i][from : from+n]})
		covered[i] += n
	}
	return list, nil
}
