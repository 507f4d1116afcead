package s3

import (
	"bufio"
	"cmp"
	"errors"
	"fmt"
	"io/fs"
	"net/url"
	"os"
	"path/filepath"
	"strings"

	"github.com/minio/minio-go/v7/pkg/credentials"
)

// amazonHost is the endpoint when the environment names no other.
const amazonHost = "s3.amazonaws.com"

// settings say where the store is. They come from environment variables and from the profile in the
// files of ~/.aws, as AWS's own tools take them. Nothing changes them once they are read; nothing
// in this file asks the store.
type settings struct {
	host   string // HOST or HOST:PORT
	secure bool   // whether to use TLS
	region string // "" = ask the store
}

// String returns the URL of the store.
func (s settings) String() string {
	if s.secure {
		return "https://" + s.host
	}
	return "http://" + s.host
}

// readSettings returns the settings from AWS_ENDPOINT_URL_S3 or AWS_ENDPOINT_URL, AWS_REGION or
// AWS_DEFAULT_REGION, then endpoint_url and region of the profile, whose file it reads.
func readSettings() (settings, error) {
	profile, err := readProfile()
	if err != nil {
		return settings{}, err
	}
	s := settings{host: amazonHost, secure: true,
		region: cmp.Or(os.Getenv("AWS_REGION"), os.Getenv("AWS_DEFAULT_REGION"), profile["region"])}
	text := cmp.Or(os.Getenv("AWS_ENDPOINT_URL_S3"), os.Getenv("AWS_ENDPOINT_URL"),
		profile["endpoint_url"])
	if text == "" {
		return s, nil
	}
	u, err := url.Parse(text)
	if err != nil || u.Scheme != "http" && u.Scheme != "https" || u.Host == "" ||
		strings.Trim(u.Path, "/") != "" || u.RawQuery != "" || u.User != nil {
		return s, fmt.Errorf("the endpoint %.200q is not of the form http://HOST:PORT or "+
			"https://HOST: correct AWS_ENDPOINT_URL_S3, AWS_ENDPOINT_URL or endpoint_url in "+
			"~/.aws/config", text)
	}
	s.host, s.secure = u.Host, u.Scheme == "https"
	if s.region == "" && !strings.HasSuffix(u.Hostname(), ".amazonaws.com") {
		s.region = "us-east-1" // accepted by stores without regions
	}
	return s, nil
}

// credentials returns what finds credentials: in the variables AWS_ACCESS_KEY_ID and so on, in the
// profile, or by the role of the machine or container. It reads nothing yet. It does no I/O.
func (s settings) credentials() *credentials.Credentials {
	return credentials.NewChainCredentials(
		[]credentials.Provider{&credentials.EnvAWS{}, &credentials.FileAWSCredentials{},
			&credentials.IAM{}})
}

// readProfile reads the keys and values of the section AWS_PROFILE of the configuration file.
// Without a file there are none. It reads that file, and keeps nothing.
func readProfile() (map[string]string, error) {
	name := os.Getenv("AWS_CONFIG_FILE")
	if name == "" {
		home, err := os.UserHomeDir()
		if err != nil {
			return nil, nil
		}
		name = filepath.Join(home, ".aws", "config")
	}
	f, err := os.Open(name)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, err
	}
	defer f.Close()
	section := "[default]"
	if p := os.Getenv("AWS_PROFILE"); p != "" && p != "default" {
		section = "[profile " + p + "]"
	}
	found, here := map[string]string{}, false
	lines := bufio.NewScanner(f)
	for lines.Scan() {
		line := strings.TrimSpace(lines.Text())
		if strings.HasPrefix(line, "[") {
			here = strings.Join(strings.Fields(line), " ") == section
		} else if key, value, ok := strings.Cut(line, "="); ok && here &&
			!strings.HasPrefix(line, "#") {
			found[strings.TrimSpace(key)] = strings.TrimSpace(value)
		}
	}
	return found, lines.Err()
}
