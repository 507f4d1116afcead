package snapshot

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"path/filepath"
	"slices"
	"strings"

	"github.com/shoal-ml/shoal/format"
	"github.com/shoal-ml/shoal/format/safetensors"
	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/manifest"
	"github.com/shoal-ml/shoal/tensor"
)

// ErrDamaged says that the bytes of a checkpoint are not those that were sealed. Other errors say
// that it could not be read, or is of another program: it may be whole.
var ErrDamaged = errors.New("not as it was sealed")

// A Sealed is a checkpoint with a seal, open for reading. Its methods read files and wait for that,
// and share the work among goroutines themselves. One goroutine at a time calls them. It keeps no
// file open between calls.
type Sealed struct {
	Path  string // folder of the checkpoint
	State *State // its description, which nobody changes
	// Own is the state that each worker had for itself, by rank; Read fills it in.
	Own    map[int]json.RawMessage
	Blocks int // blocks of all files, each of which has a hash

	files []manifest.File // files that the manifest lists, with their hashes
}

// Open reads the description and the manifest of a step's checkpoint, which must lie in a folder of
// the file system, and waits for the disk. Any goroutine may call it. The error is ErrDamaged where
// the bytes are proved to be wrong.
func (f Folder) Open(step uint64) (*Sealed, error) {
	s := &Sealed{Path: f.Path(step), Own: map[int]json.RawMessage{}}
	text, err := durable.Read(filepath.Join(s.Path, manifest.Name), manifest.MaxBytes)
	if err != nil {
		return nil, err // whoever lists checkpoints has seen it: it is out of reach here
	}
	m, err := manifest.Parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, SealError(err))
	}
	for _, file := range m.Files {
		s.Blocks += len(file.Blocks)
	}
	s.files = m.Files
	if text, err = s.readText(StateName); err == nil {
		s.State, err = ParseState(text)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", s.Path, err)
	}
	return s, nil
}

// SealError returns the error about a manifest that cannot be read: it is ErrDamaged, unless the
// manifest is one of another version.
func SealError(err error) error {
	if errors.Is(err, manifest.ErrVersion) {
		return err
	}
	return fmt.Errorf("%w: %w", ErrDamaged, err)
}

// readText reads a small file, and compares all of it with its hashes.
func (s *Sealed) readText(name string) ([]byte, error) {
	i := s.indexOf(name)
	if i < 0 || s.files[i].Size > MaxTextBytes {
		return nil, fmt.Errorf("%s is not among the files that were sealed: %w", name, ErrDamaged)
	}
	text, want := make([]byte, s.files[i].Size), blockReads{}
	want.addRange(0, text)
	return text, s.readVerified(context.Background(), name, want)
}

// indexOf returns the place of a file in s.files; -1 = the manifest does not list it.
func (s *Sealed) indexOf(name string) int {
	return slices.IndexFunc(s.files, func(f manifest.File) bool { return f.Name == name })
}

// proveDamage returns err, or ErrDamaged where the bytes of the files show that they are the reason
// for it. It may read all files again, and waits for that.
func (s *Sealed) proveDamage(ctx context.Context, err error) error {
	var failed *fs.PathError // nobody can say what the bytes are
	if errors.Is(err, ErrDamaged) || errors.As(err, &failed) || ctx.Err() != nil {
		return err
	}
	for i := range s.files {
		want := blockReads{}
		want.includeFirst(len(s.files[i].Blocks))
		if proof := s.readVerified(ctx, s.files[i].Name, want); errors.Is(proof, ErrDamaged) {
			return fmt.Errorf("%s: %w", s.Path, proof)
		}
	}
	return err
}

// Read reads all tensors into memory: into[i] has as many bytes as tensor i. Of the blocks of all
// files it compares every turns-th, beginning with number turn, with its hash, and returns how many
// it compared. The error is ErrDamaged where the bytes are proved to be wrong.
func (s *Sealed) Read(ctx context.Context, into [][]byte, turn, turns int) (compared int,
	err error) {
	covered := make([]int, len(into))
	for i := range s.files {
		f := &s.files[i]
		n, err := s.readFile(ctx, f, into, covered, turn, turns)
		if err != nil {
			return compared, s.proveDamage(ctx, fmt.Errorf("%s: %w", s.Path, err))
		}
		compared += n
	}
	for i, n := range covered {
		if t := s.State.Tensors[i]; n != t.Bytes() {
			return compared, s.proveDamage(ctx, fmt.Errorf("%s has %d bytes of tensor %s, of %d",
				s.Path, n, t.Name, t.Bytes()))
		}
	}
	return compared, nil
}

// readFile reads one file as Read does, and adds to covered how many bytes of each tensor it has.
func (s *Sealed) readFile(ctx context.Context, f *manifest.File, into [][]byte, covered []int, turn,
	turns int) (compared int, err error) {
	file, err := s.openChecked(f)
	if err != nil {
		return 0, err
	}
	defer file.Close()
	want := blockReads{}
	want.includeFirst(len(f.Blocks))
	if strings.HasSuffix(f.Name, ".safetensors") {
		if err := s.locateShard(file, f, into, covered, want); err != nil {
			return 0, err
		}
	}
	for i := turn; i < len(f.Blocks); i += turns {
		compared++
	}
	return compared, readBlocks(ctx, file, f, want, func(i int) bool { return i%turns == turn })
}

// locateShard reads the header of a shard. It adds where its tensors belong to want, how many bytes
// of each there are to covered, and the state of the rank to s.Own.
func (s *Sealed) locateShard(file io.ReaderAt, f *manifest.File, into [][]byte, covered []int,
	want blockReads) error {
	h, err := safetensors.ReadHeader(f.Name, file, f.Size)
	if err != nil {
		return err
	}
	var offsets map[string]struct {
		Starts tensor.Shape `json:"saved_offsets"`
	}
	var origin format.Origin // OriginOf would refuse older shards, which say less
	if err := errors.Join(json.Unmarshal([]byte(h.Metadata[shardingInfo]), &offsets),
		json.Unmarshal([]byte(h.Metadata[format.OriginKey]), &origin)); err != nil {
		return fmt.Errorf("%s: the metadata: %w", f.Name, err)
	}
	s.Own[origin.Rank] = origin.Own
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
			start := starts[t.cutDim()]
			fits = start >= 0 && start <= t.Bytes()/t.rowBytes()
			from = start * t.rowBytes()
		}
		if !fits || n > len(into[i])-from {
			return fmt.Errorf("%s: tensor %q does not fit into the state", f.Name, part.Name)
		}
		want.addRange(h.Data+part.Begin, into[i][from:from+n])
		covered[i] += n
	}
	return nil
}
