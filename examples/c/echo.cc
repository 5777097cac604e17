// SPDX-License-Identifier: Apache-2.0 OR MIT
//
// A store in C++: the update "KEY TEXT" stores the text under the key; the request "KEY" returns the text. One
// transaction appends the data and the rows of a batch to one file.
//
//	echo LISTEN FILE
//
#include <cerrno>
#include <csignal>
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <fcntl.h>
#include <fstream>
#include <iostream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>
#include <unistd.h>
#include <vector>

#include <pmnet.h>

namespace {

volatile std::sig_atomic_t stop;

extern "C" void on_signal(int number)
{
	stop = number;
}

void check(int code)
{
	if (code < 0)
		throw std::runtime_error(pmnet_last_error());
}

std::uint64_t hash(const std::string &bytes)
{
	return pmnet_key_hash(bytes.data(), bytes.size());
}

// A file of transactions. Each has its length, a hash, and the key and value of each change. An incomplete transaction
// at the end of the file is ignored.
class Journal {
public:
	using Map = std::map<std::string, std::string>;

	Journal(const char *path, Map &into)
	{
		std::ifstream file(path, std::ios::binary);
		std::string all((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
		std::size_t at = 0;

		while (all.size() - at >= sizeof(Head)) {
			Head head;
			std::memcpy(&head, all.data() + at, sizeof(head));
			if (head.len > all.size() - at - sizeof(head))
				break;
			std::string body = all.substr(at + sizeof(head), head.len);
			if (hash(body) != head.hash)
				break;
			replay(body, into);
			at += sizeof(head) + head.len;
		}
		fd_ = open(path, O_WRONLY | O_CREAT, 0666);
		if (fd_ < 0 || ftruncate(fd_, static_cast<off_t>(at)) || lseek(fd_, 0, SEEK_END) < 0)
			throw std::runtime_error(std::strerror(errno));
	}
	Journal(const Journal &) = delete;
	Journal &operator=(const Journal &) = delete;
	~Journal()
	{
		close(fd_);
	}

	void put(const std::string &key, const std::string &value)
	{
		add(key);
		add(value);
	}

	void commit()
	{
		Head head = { body_.size(), hash(body_) };
		std::string all(reinterpret_cast<const char *>(&head), sizeof(head));

		all += body_;
		body_.clear();
		if (write(fd_, all.data(), all.size()) != static_cast<ssize_t>(all.size()) || fdatasync(fd_))
			throw std::runtime_error(std::strerror(errno));
	}

private:
	struct Head {
		std::uint64_t len, hash;
	};

	void add(const std::string &part)
	{
		std::uint64_t len = part.size();
		body_.append(reinterpret_cast<const char *>(&len), sizeof(len)).append(part);
	}

	static std::string take(const std::string &body, std::size_t &at)
	{
		std::uint64_t len;
		std::memcpy(&len, body.data() + at, sizeof(len));
		at += sizeof(len) + len;
		return body.substr(at - len, len);
	}

	static void replay(const std::string &body, Map &into)
	{
		for (std::size_t at = 0; at < body.size();) {
			std::string key = take(body, at), value = take(body, at);
			if (value.empty())
				into.erase(key);
			else
				into[key] = value;
		}
	}

	std::string body_;
	int fd_;
};

class Echo {
public:
	Echo(const char *listen, const char *path) : journal_(path, kept_)
	{
		struct pmnet_server_options options = {};
		std::vector<struct pmnet_row> rows;

		// A key that begins with 'r' is a row of the library; a key that begins with 'd' is data.
		for (const auto &[key, value] : kept_)
			if (key[0] == 'r')
				rows.push_back({ key.data() + 1, key.size() - 1, value.data(), value.size() });
		options.size = sizeof(options);
		options.listen = listen;
		options.rows = rows.data();
		options.rows_count = rows.size();
		check(pmnet_server_open(&options, &server_));
		std::cout << "ready port=" << pmnet_server_port(server_) << std::endl;
	}
	Echo(const Echo &) = delete;
	Echo &operator=(const Echo &) = delete;
	~Echo()
	{
		pmnet_server_close(server_);
	}

	void turn()
	{
		struct pmnet_batch batch;
		int code = pmnet_server_next(server_, 1000, &batch);

		check(code);
		if (code == PMNET_AGAIN)
			return;
		for (std::size_t i = 0; i < batch.count; i++)
			serve(batch.items[i], i);
		const struct pmnet_row *rows;
		std::size_t count;
		check(pmnet_server_rows(server_, &rows, &count));
		for (std::size_t i = 0; i < count; i++)
			store('r', { static_cast<const char *>(rows[i].key), rows[i].key_len },
			      { static_cast<const char *>(rows[i].value), rows[i].value_len });
		if (count > 0)
			journal_.commit();
		check(pmnet_server_done(server_, batch.number));
	}

private:
	void serve(const struct pmnet_item &item, std::size_t at)
	{
		std::string text(static_cast<const char *>(item.payload), item.len);
		auto space = text.find(' ');

		if (item.kind == PMNET_UPDATE) {
			if (space != std::string::npos)
				store('d', text.substr(0, space), text.substr(space + 1));
			return;
		}
		auto found = kept_.find("d" + text);
		std::string reply = found == kept_.end() ? "" : found->second;
		check(pmnet_server_reply(server_, at, reply.data(), reply.size()));
	}

	void store(char kind, const std::string &key, const std::string &value)
	{
		journal_.put(kind + key, value);
		if (value.empty())
			kept_.erase(kind + key);
		else
			kept_[kind + key] = value;
	}

	Journal::Map kept_;
	Journal journal_;
	struct pmnet_server server_ = {};
};

} // namespace

int main(int argc, char **argv)
{
	if (argc != 3) {
		std::cerr << "usage: echo LISTEN FILE\n";
		return 2;
	}
	struct sigaction action = {};
	action.sa_handler = on_signal;
	sigaction(SIGTERM, &action, nullptr);
	try {
		Echo echo(argv[1], argv[2]);
		while (!stop)
			echo.turn();
	} catch (const std::exception &error) {
		std::cerr << "echo: " << error.what() << '\n';
		return 1;
	}
	return 0;
}
