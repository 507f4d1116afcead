package digits

import (
	"bytes"
	"compress/gzip"
	"embed"
	"encoding/csv"
	"fmt"
	"strconv"
)

// The images that the model is trained on. Nobody changes a set once Load has returned it, so any
// goroutine may read it.

// An image has Side × Side = Pixels pixels and shows one of Classes digits.
const (
	Side    = 8
	Pixels  = Side * Side
	Classes = 10
)

// archive is the images and their digits, a line each.
//
//go:embed data/digits.csv.gz
var archive []byte

// Scripts are the same training in NumPy and in PyTorch, an audit that runs them, and the data
// beside them.
//
//go:embed numpy_digits.py torch_digits.py audit.py data/digits.csv.gz data/LICENSE.md
var Scripts embed.FS

// Float is the arithmetic of a run.
type Float interface{ float32 | float64 }

// Set is a set of labelled images: pixel p of image i is Pixel[i*Pixels+p], from 0 to 1, and its
// digit is Label[i].
type Set[T Float] struct {
	Pixel []T
	Label []int
}

// Len returns the number of images.
func (s *Set[T]) Len() int { return len(s.Label) }

// Image returns the pixels of image i, in the memory of the set.
func (s *Set[T]) Image(i int) []T { return s.Pixel[i*Pixels : (i+1)*Pixels] }

// Load returns 12,942 training images and 359 test images. Every fifth image is a test image, so
// that all languages hold out the same ones; each of the other 1,438 is there nine times, shifted
// by up to one pixel both ways. Each call reads the embedded file anew, and the sets are the
// caller's.
func Load[T Float]() (train, test *Set[T], err error) {
	unzipped, err := gzip.NewReader(bytes.NewReader(archive))
	if err != nil {
		return nil, nil, fmt.Errorf("digits: %w", err)
	}
	rows := csv.NewReader(unzipped)
	rows.FieldsPerRecord = Pixels + 1
	lines, err := rows.ReadAll()
	if err != nil {
		return nil, nil, fmt.Errorf("digits: %w", err)
	}
	upright, test := new(Set[T]), new(Set[T])
	for i, line := range lines {
		set := upright
		if i%5 == 4 {
			set = test
		}
		if err := set.addImage(line); err != nil {
			return nil, nil, fmt.Errorf("digits: line %d: %w", i+1, err)
		}
	}
	train = new(Set[T])
	for down := -1; down <= 1; down++ {
		for right := -1; right <= 1; right++ {
			train.Pixel = append(train.Pixel, upright.shifted(down, right)...)
			train.Label = append(train.Label, upright.Label...)
		}
	}
	return train, test, nil
}

// addImage appends the image and the digit in a line of the file. The line has Pixels numbers from
// 0 to 16, and then the digit.
func (s *Set[T]) addImage(line []string) error {
	for _, field := range line[:Pixels] {
		v, err := strconv.Atoi(field)
		if err != nil {
			return err
		}
		s.Pixel = append(s.Pixel, T(v)/16)
	}
	label, err := strconv.Atoi(line[Pixels])
	s.Label = append(s.Label, label)
	return err
}

// shifted returns the pixels of all images moved by so many rows and columns; what comes into view
// is empty.
func (s *Set[T]) shifted(down, right int) []T {
	moved := make([]T, len(s.Pixel))
	for i := range s.Label {
		from, to := s.Image(i), moved[i*Pixels:]
		for row := max(0, down); row < min(Side, Side+down); row++ {
			for column := max(0, right); column < min(Side, Side+right); column++ {
				to[row*Side+column] = from[(row-down)*Side+column-right]
			}
		}
	}
	return moved
}
