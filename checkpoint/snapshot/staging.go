package snapshot

import (
	"context"
	"errors"
	"fmt"
	"io/fs"
	"slices"
	"strconv"
	"strings"
	"sync"

	"github.com/shoal-ml/shoal/internal/pattern"
	"github.com/shoal-ml/shoal/state/digest"
	"github.com/shoal-ml/shoal/state/manifest"
)

// How an attempt ends: whoever finds all receipts combines them into a manifest and seals the
// checkpoint; an attempt that can have no more parts is removed. The functions without a receiver
// are pure.

// receiptName matches the receipt of a worker; it has the number of workers.
var receiptName = pattern.New(`^\.part-\d+-of-(\d{1,9})\.json$`)

// sealing lets one goroutine of this process seal at a time, and is held while the store does: two
// would leave a half-written manifest in what is published. Goroutines of other hosts are safe.
var sealing sync.Mutex

// receiptsAmong returns the receipts among the files of an attempt, and whether all are there.
func receiptsAmong(names []string) (receipts []string, complete bool) {
	workers := 0
	for _, name := range names {
		if m := receiptName.FindStringSubmatch(name); m != nil {
			receipts = append(receipts, name)
			workers, _ = strconv.Atoi(m[1]) // nine digits
		}
	}
	return receipts, len(receipts) > 0 && len(receipts) >= workers
}

// A staging is a checkpoint that is being written. Its methods read and write the store, and wait
// for it. Each is for one goroutine; several stagings of the same attempt, also on other hosts, may
// be in use at once.
type staging struct {
	Attempt
	folder Folder
	// unreadable says that a file of the attempt cannot be parsed, or that its description is
	// missing, so that it can never be sealed.
	unreadable bool
}

// isGone reports whether an error says that an attempt does not exist any more.
func isGone(err error) bool { return errors.Is(err, fs.ErrNotExist) }

// abandon removes the attempt to free its space. It returns false when the attempt has all its
// parts by now.
func (s *staging) abandon() (bool, error) {
	return s.folder.StoreOrLocal().Abandon(context.Background(), s.Attempt,
		func(names []string) bool {
			_, complete := receiptsAmong(names)
			return complete && !s.unreadable
		})
}

// seal seals and publishes the checkpoint if all its parts are there, and removes checkpoints that
// are too old. It returns whether this call has sealed it: false if parts are missing, or another
// call was first. Several callers may call it at once, and again after one that was killed in the
// middle. It returns errStepTaken, and removes the attempt, when another one at this step is
// sealed.
func (s *staging) seal() (bool, error) {
	sealing.Lock()
	defer sealing.Unlock()
	err := s.publish(context.Background())
	switch {
	case errors.Is(err, errIncomplete), isGone(err): // gone = published by another
		return false, nil
	case errors.Is(err, fs.ErrExist):
		_, _ = s.abandon()
		return false, errStepTaken
	case err != nil:
		return false, err
	}
	s.folder.removeOld(s.Attempt)
	return true, nil
}

const otherJobHint = ", so another job writes into the folder: give each job a folder of its own"

var (
	errIncomplete = errors.New("not all parts are there")
	// errStepTaken means another job: a job makes no step again of which a checkpoint is sealed.
	errStepTaken = errors.New("another checkpoint of this step was sealed there meanwhile" +
		otherJobHint)
)

// publish has the store seal the attempt if all receipts are there, or else returns errIncomplete.
// sealing is held.
func (s *staging) publish(ctx context.Context) error {
	p := s.folder.StoreOrLocal()
	names, err := p.Files(ctx, s.Attempt)
	if err != nil {
		return err
	}
	if slices.Contains(names, manifest.Name) {
		return p.Seal(ctx, s.Attempt, nil)
	}
	receipts, complete := receiptsAmong(names)
	if !complete {
		return errIncomplete
	}
	text, err := s.buildManifest(ctx, receipts)
	if err != nil {
		return err
	}
	return p.Seal(ctx, s.Attempt, text)
}

// buildManifest returns the manifest that the receipts, which it reads, come to. It sets
// s.unreadable if a file cannot be parsed, or the description is missing.
func (s *staging) buildManifest(ctx context.Context, receipts []string) ([]byte, error) {
	p := s.folder.StoreOrLocal()
	text, err := p.Read(ctx, s.Attempt, StateName)
	if err != nil {
		s.unreadable = isGone(err)
		return nil, err
	}
	state, err := ParseState(text)
	if err != nil {
		s.unreadable = true
		return nil, fmt.Errorf("%w: %w", errIncomplete, err)
	}
	m := &manifest.Manifest{Seed: s.Seed}
	for _, t := range state.Tensors {
		m.Tensors = append(m.Tensors,
			manifest.Tensor{Name: t.Name, DType: t.DType, Shape: t.Shape,
				Sum: digest.Sum{Bytes: uint64(t.Bytes())}})
	}
	for _, name := range receipts {
		text, err := p.Read(ctx, s.Attempt, name)
		if err != nil {
			return nil, err
		}
		r, err := parseReceipt(text, len(state.Tensors))
		if err != nil {
			s.unreadable = true
			return nil, fmt.Errorf("%w: %s: %w", errIncomplete, name, err)
		}
		for i, sum := range r.Sums {
			m.Tensors[i].Sum = m.Tensors[i].Sum.Plus(digest.Sum{Value: sum})
		}
		m.Files = append(m.Files, r.Files...)
	}
	slices.SortFunc(m.Tensors, func(a, b manifest.Tensor) int {
		return strings.Compare(a.Name, b.Name)
	})
	slices.SortFunc(m.Files, func(a, b manifest.File) int {
		return strings.Compare(a.Name, b.Name)
	})
	return m.Append(nil)
}
