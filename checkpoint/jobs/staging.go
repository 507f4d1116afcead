package jobs

import (
	"errors"
	"fmt"
	"io/fs"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"sync"
	"syscall"

	"github.com/shoal-ml/shoal/internal/durable"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
)

var receiptName = regexp.MustCompile(`^\.part-\d+-of-(\d{1,9})\.json$`)

// sealing lets one goroutine of this process seal at a time: others would leave a half-written manifest in what is published. Those of
// another host may.
var sealing sync.Mutex

// A staging is a checkpoint that is being written.
type staging struct {
	folder Folder
	step   uint64
	seed   uint64 // of the fingerprints; no two checkpoints have one folder
}

func (s *staging) path() string {
	return filepath.Join(s.folder.Root, fmt.Sprintf(".staging-%012d-%016x", s.step, s.seed))
}

// abandon removes it, so that nothing of it takes room.
func (s *staging) abandon() { _ = os.RemoveAll(s.path()) }

// seal seals and publishes the checkpoint if all its parts are there, and removes those that are too old. It may be called by several at
// once, and again after one that was killed in the middle.
func (s *staging) seal() (bool, error) {
	sealing.Lock()
	defer sealing.Unlock()
	err := s.publish()
	switch {
	case errors.Is(err, errIncomplete), errors.Is(err, fs.ErrNotExist): // or another has published it
		return false, nil
	case errors.Is(err, syscall.ENOTEMPTY), errors.Is(err, syscall.EEXIST): // this step is sealed already
		s.abandon()
		return false, nil
	case err != nil:
		return false, err
	}
	s.folder.Point()
	s.folder.prune()
	return true, nil
}

// errIncomplete also is what ParseState and the like say: nothing can become of such a checkpoint.
var errIncomplete = errors.New("not all parts are there")

func (s *staging) publish() error {
	entries, err := os.ReadDir(s.path())
	if err != nil {
		return err
	}
	var receipts []string
	workers, sealed := 0, false
	for _, e := range entries {
		if m := receiptName.FindStringSubmatch(e.Name()); m != nil {
			receipts = append(receipts, filepath.Join(s.path(), e.Name()))
			workers, _ = strconv.Atoi(m[1]) // nine digits
		}
		sealed = sealed || e.Name() == manifest.Name
	}
	if !sealed {
		if len(receipts) == 0 || len(receipts) < workers {
			return errIncomplete
		}
		if err := s.writeManifest(receipts); err != nil {
			return err
		}
	}
	for _, name := range receipts {
		if err := os.Remove(name); err != nil && !errors.Is(err, fs.ErrNotExist) {
			return err
		}
	}
	if err := durable.Sync(s.path()); err != nil {
		return err
	}
	if err := os.Rename(s.path(), s.folder.Path(s.step)); err != nil {
		return err
	}
	return durable.Sync(s.folder.Root)
}

// writeManifest adds up what the receipts say.
func (s *staging) writeManifest(receipts []string) error {
	text, err := os.ReadFile(filepath.Join(s.path(), stateName))
	if err != nil {
		return err
	}
	state, err := ParseState(text)
	if err != nil {
		return fmt.Errorf("%s: %w: %w", s.path(), errIncomplete, err)
	}
	m := &manifest.Manifest{Seed: s.seed}
	for _, t := range state.Tensors {
		m.Tensors = append(m.Tensors, manifest.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape, Sum: digest.Sum{Bytes: uint64(t.Bytes())}})
	}
	for _, name := range receipts {
		text, err := os.ReadFile(name)
		if err != nil {
			return err
		}
		r, err := parseReceipt(text, len(state.Tensors))
		if err != nil {
			return fmt.Errorf("%s: %w: %w", name, errIncomplete, err)
		}
		for i, sum := range r.Sums {
			m.Tensors[i].Sum = m.Tensors[i].Sum.Plus(digest.Sum{Value: sum})
		}
		m.Files = append(m.Files, r.Files...)
	}
	slices.SortFunc(m.Tensors, func(a, b manifest.Tensor) int { return strings.Compare(a.Name, b.Name) })
	slices.SortFunc(m.Files, func(a, b manifest.File) int { return strings.Compare(a.Name, b.Name) })
	if text, err = m.Append(nil); err != nil {
		return err
	}
	return durable.Write(filepath.Join(s.path(), manifest.Name), text)
}
