// Package s3 has checkpoints of running jobs in a bucket of Amazon S3 or of any store that speaks
// its protocol, as docs/formats/job-checkpoints.md describes them: it is a place for
// checkpoint/snapshot, brings a checkpoint from there to a folder, shows it as files to those who
// read formats, and takes files from those who write them. The agent and the command line use it;
// no worker does.
package s3

import (
	"bytes"
	"cmp"
	"context"
	"errors"
	"fmt"
	"io"
	"net/http"
	"net/url"
	"path"
	"strings"
	"time"

	"github.com/minio/minio-go/v7"
	"github.com/minio/minio-go/v7/pkg/credentials"
)

const scheme = "s3://"

// A Bucket is the objects below s3://BUCKET/PREFIX. It is for several goroutines at once.
type Bucket struct {
	url    string // without a slash at its end
	bucket string
	prefix string // of the keys: empty, or with a slash at its end
	store  string // the endpoint, for people
	core   minio.Core
	creds  *credentials.Credentials
	client *http.Client
	unit   int // bytes of a part of an upload, where that does not make too many
	tries  int // of a request that fails for a reason that can pass
	wait   func(ctx context.Context, d time.Duration) error
}

// Open reads s3://BUCKET/PREFIX, and from the environment where that is and who asks. It does not
// talk to the store yet.
func Open(address string) (*Bucket, error) {
	rest, ok := strings.CutPrefix(address, scheme)
	bucket, prefix, _ := strings.Cut(rest, "/")
	if prefix != "" {
		prefix = strings.TrimSuffix(prefix, "/")
		ok = ok && prefix == path.Clean(prefix) && prefix[0] != '/' &&
			!strings.HasPrefix(prefix, "..")
	}
	if !ok || bucket == "" || strings.ContainsAny(address, "\x00?#\\") {
		return nil, fmt.Errorf(
			"%.200q names no place in a bucket: it takes s3://BUCKET or s3://BUCKET/PREFIX",
			address)
	}
	e, err := environment()
	if err != nil {
		return nil, err
	}
	b := &Bucket{url: scheme + path.Join(bucket, prefix), bucket: bucket, store: e.String(),
		creds: e.credentials(), unit: unitBytes, tries: tries, wait: wait}
	if prefix != "" {
		b.prefix = prefix + "/"
	}
	transport, err := minio.DefaultTransport(e.secure)
	if err != nil {
		return nil, err
	}
	return b, b.connect(e, transport)
}

// connect has the store asked through a transport.
func (b *Bucket) connect(e settings, transport http.RoundTripper) error {
	transport = answers{transport}
	b.client = &http.Client{Transport: transport}
	core, err := minio.NewCore(e.host,
		&minio.Options{Creds: b.creds, Secure: e.secure, Region: e.region, Transport: transport,
			MaxRetries: 1})
	if err != nil {
		return fmt.Errorf("the endpoint %s: %w", e, err)
	}
	b.core = *core
	return nil
}

// String is the URL.
func (b *Bucket) String() string { return b.url }

// key is that of a name below the prefix.
func (b *Bucket) key(name string) string { return b.prefix + name }

// An object is what a listing says of one.
type object struct {
	name     string // below the prefix
	size     int64
	modified time.Time
}

// list returns the objects whose names begin so: with deep all of them, else those up to the next
// slash, where what ends with one is a folder.
func (b *Bucket) list(ctx context.Context, begin string, deep bool) (found []object, err error) {
	owner := false
	err = b.try(ctx, "list "+b.url, func(ctx context.Context) error {
		found = nil
		for o := range b.core.ListObjectsIter(ctx, b.bucket,
			minio.ListObjectsOptions{Prefix: b.key(begin), Recursive: deep, FetchOwner: &owner}) {
			name := strings.TrimPrefix(o.Key, b.prefix)
			switch {
			case o.Err != nil:
				return o.Err
			case !strings.HasPrefix(o.Key, b.key(begin)):
				return absurd("it lists %.200q, which does not begin with %q", o.Key, b.key(begin))
			case o.Size < 0:
				return absurd("it lists %.200q with %d bytes", o.Key, o.Size)
			case len(found) > 0 && found[0].name == name:
				return absurd("its list begins again, with %.200q", o.Key)
			}
			if found = append(found,
				object{name, o.Size, o.LastModified}); len(found) > mostListed {
				return nil
			}
		}
		return nil
	})
	return found, cmp.Or(err, b.few(len(found)))
}

// few fails when more is listed than there is room for.
func (b *Bucket) few(n int) error {
	if n > mostListed {
		return fmt.Errorf(
			"below %s are more than %d objects or uploads; give a folder further down, with fewer",
			b.url, mostListed)
	}
	return nil
}

// An upload is one of several parts that was not completed.
type upload struct{ name, id string }

// uploads lists those whose names begin so; none where the store does not tell. They take room
// until somebody aborts them.
func (b *Bucket) uploads(ctx context.Context, begin string) (found []upload, err error) {
	err = b.try(ctx, "list the uploads to "+b.url, func(ctx context.Context) error {
		found = nil
		key, id := "", ""
		for {
			r, err := b.core.ListMultipartUploads(ctx, b.bucket, b.key(begin), key, id, "", 1000)
			if err != nil {
				return err
			}
			for _, u := range r.Uploads {
				if name, ok := strings.CutPrefix(u.Key, b.key(begin)); ok {
					found = append(found, upload{begin + name, u.UploadID})
				}
			}
			before := [2]string{key, id}
			if key, id = r.NextKeyMarker, r.NextUploadIDMarker; !r.IsTruncated || key == "" ||
				len(found) > mostListed {
				return nil
			}
			if before == [2]string{key, id} {
				return absurd("its list of uploads does not go on behind %.200q", key)
			}
		}
	})
	var refused *refusal
	if errors.As(err, &refused) && refused.code != "NoSuchBucket" {
		return nil, nil
	}
	return found, cmp.Or(err, b.few(len(found)))
}

func (b *Bucket) put(ctx context.Context, name string, text []byte) error {
	return b.try(ctx, "write "+b.url+"/"+name, func(ctx context.Context) error {
		_, err := b.core.PutObject(ctx, b.bucket, b.key(name), bytes.NewReader(text),
			int64(len(text)), "", "", minio.PutObjectOptions{})
		return err
	})
}

func (b *Bucket) remove(ctx context.Context, name string) error {
	err := b.try(ctx, "remove "+b.url+"/"+name, func(ctx context.Context) error {
		return b.core.RemoveObject(ctx, b.bucket, b.key(name), minio.RemoveObjectOptions{})
	})
	return unless(isGone, err)
}

func (b *Bucket) stat(ctx context.Context, name string) (o object, err error) {
	err = b.try(ctx, "read "+b.url+"/"+name, func(ctx context.Context) error {
		info, err := b.core.StatObject(ctx, b.bucket, b.key(name), minio.StatObjectOptions{})
		if err == nil && info.Size < 0 {
			err = absurd("it does not say how many bytes %s has", b.key(name))
		}
		o = object{name, info.Size, info.LastModified}
		return err
	})
	return o, err
}

// read fills to with the bytes of an object from a place on.
func (b *Bucket) read(ctx context.Context, name string, to []byte, at int64) error {
	if len(to) == 0 {
		return nil
	}
	return b.try(ctx, "read "+b.url+"/"+name, func(ctx context.Context) error {
		var o minio.GetObjectOptions
		if err := o.SetRange(at, at+int64(len(to))-1); err != nil {
			return err
		}
		body, _, _, err := b.core.GetObject(ctx, b.bucket, b.key(name), o)
		if err == nil && body == nil { // as with status 202
			err = absurd("it sends nothing of %s", b.key(name))
		}
		if err != nil {
			return err
		}
		if _, err = io.ReadFull(body, to); err != nil {
			err = &url.Error{Op: "Get", URL: b.url + "/" + name, Err: err}
		}
		return errors.Join(err, body.Close())
	})
}

// readAll reads an object of up to most bytes.
func (b *Bucket) readAll(ctx context.Context, name string, most int64) ([]byte, error) {
	o, err := b.stat(ctx, name)
	if err != nil {
		return nil, err
	}
	if o.size > most {
		return nil, fmt.Errorf("%s/%s has %d bytes, the limit is %d", b.url, name, o.size, most)
	}
	text := make([]byte, o.size)
	return text, b.read(ctx, name, text, 0)
}
